//! What of netfilter forwarded packets meet: chains of nftables with rules, tables of the older iptables.
//!
//! nftables has a generation number that changes with every change: its chains are listed when that is another one.

use std::{fs, io};

use lb_netlink::{
    Socket, is_without,
    nf_tables::{self, Chain},
};

/// Tables of iptables and ip6tables as the kernel lists them where they do without nftables. Each is asked for all packets.
const LEGACY: [(&str, &str); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables (legacy) table"),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables (legacy) table"),
];

/// What was found, and of which generation.
#[derive(Debug, Default)]
pub(super) struct Watch {
    generation: Option<u32>,
    chains: Vec<String>,
}

impl Watch {
    /// What forwarded packets meet, by name.
    pub fn skipped(&mut self) -> Vec<String> {
        let mut found = match self.chains() {
            Ok(()) => self.chains.clone(),
            // If nftables cannot be listed, the fast path stays off.
            Err(error) => vec![format!("not known: nftables cannot be listed: {error}")],
        };
        for (path, what) in LEGACY {
            match fs::read_to_string(path) {
                Ok(names) => found.extend(names.lines().map(|name| format!("{what} {name}"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => found.push(format!("not known: {what}: {path}: {error}")),
            }
        }
        found
    }

    fn chains(&mut self) -> io::Result<()> {
        let Some(mut socket) = Socket::netfilter()? else { return Ok(()) };
        let generation = match nf_tables::generation(&mut socket) {
            Ok(generation) if generation == self.generation => return Ok(()),
            Ok(generation) => generation,
            // A kernel without nftables.
            Err(error) if is_without(&error) => {
                (self.generation, self.chains) = (None, Vec::new());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let chains = nf_tables::chains(&mut socket)?;
        // A change between the two is seen next time: its generation is another one.
        (self.generation, self.chains) =
            (generation, chains.iter().filter(|it| meets_forwarded(it)).map(text).collect());
        Ok(())
    }
}

fn text(chain: &Chain) -> String {
    let family = match i32::from(chain.family) {
        libc::NFPROTO_INET => "inet",
        libc::NFPROTO_IPV4 => "ip",
        libc::NFPROTO_IPV6 => "ip6",
        libc::NFPROTO_BRIDGE => "bridge",
        libc::NFPROTO_NETDEV => "netdev",
        _ => "other",
    };
    format!("nftables chain {family} {} {}", chain.table, chain.name)
}

/// Whether the chain can have an effect on forwarded packets.
fn meets_forwarded(chain: &Chain) -> bool {
    const HOOKS: [u32; 4] =
        [libc::NF_INET_PRE_ROUTING as u32, libc::NF_INET_FORWARD as u32, libc::NF_INET_POST_ROUTING as u32, 5];
    let Some(hook) = chain.hook else { return false };
    let meets = match i32::from(chain.family) {
        libc::NFPROTO_INET | libc::NFPROTO_IPV4 | libc::NFPROTO_IPV6 => HOOKS.contains(&hook),
        libc::NFPROTO_BRIDGE | libc::NFPROTO_NETDEV => true,
        _ => false,
    };
    meets && (chain.rules > 0 || chain.drops)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: i32, hook: Option<u32>, rules: u32, drops: bool) -> Chain {
        let family = u8::try_from(family).expect("a family");
        Chain { family, table: "t".into(), name: "c".into(), hook, rules, drops }
    }

    #[test]
    fn only_what_forwarded_packets_meet_counts() {
        let (inet, forward) = (libc::NFPROTO_INET, Some(2));
        assert!(meets_forwarded(&chain(inet, forward, 1, false)));
        assert!(meets_forwarded(&chain(inet, forward, 0, true)), "its policy drops");
        assert!(!meets_forwarded(&chain(inet, forward, 0, false)), "it is empty");
        assert!(!meets_forwarded(&chain(inet, Some(1), 1, true)), "input");
        assert!(!meets_forwarded(&chain(inet, Some(3), 1, true)), "output");
        assert!(!meets_forwarded(&chain(inet, None, 9, false)), "no hook leads to it by itself");
        assert!(meets_forwarded(&chain(libc::NFPROTO_NETDEV, Some(0), 1, false)));
        assert!(!meets_forwarded(&chain(libc::NFPROTO_ARP, Some(0), 1, false)));
        assert_eq!(text(&chain(inet, forward, 1, false)), "nftables chain inet t c");
    }
}
