//! What of netfilter forwarded packets meet: chains of nftables with rules, tables of the older iptables.
//!
//! nftables has a generation number that changes with every change: its chains are listed when that is another one. The messages are
//! those of the kernel's `nfnetlink.h` and `nf_tables.h`.

mod message;

use std::{fs, io};

use message::{Answer, Chain};

use crate::netlink::Socket;

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
            // Who cannot look must not skip.
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
        let mut generation = None;
        let answered = socket.converse(&message::get_generation(), |kind, family, attributes| {
            if let Some(Answer::Generation(number)) = message::read(kind, family, attributes) {
                generation = Some(number);
            }
        });
        match answered {
            Ok(()) if generation == self.generation => return Ok(()),
            // A kernel without nftables.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT)) => {
                (self.generation, self.chains) = (None, Vec::new());
                return Ok(());
            }
            answered => answered?,
        }
        let mut chains = Vec::new();
        socket.converse(&message::list_chains(), |kind, family, attributes| {
            match message::read(kind, family, attributes) {
                Some(Answer::Chain(chain)) if meets_forwarded(&chain) => chains.push(chain.text()),
                _ => {}
            }
        })?;
        // A change between the two is seen next time: its generation is another one.
        (self.generation, self.chains) = (generation, chains);
        Ok(())
    }
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
    }
}
