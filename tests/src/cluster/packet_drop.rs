//! Drops a connection's packets in both directions with netfilter, so that neither end notices. Needs `nft`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::topology::NetNs;

/// The state ESTABLISHED in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// Name of the table.
const TABLE: &str = "ballast_silence";

/// The connections that were open when it was made hear nothing any more, and are not heard. New ones pass. Dropped, it ends.
#[derive(Debug)]
pub struct PacketDrop {
    netns: NetNs,
}

impl PacketDrop {
    /// On the connections from `netns` to `server` (IPv4).
    pub fn of_open_connections(netns: &NetNs, server: SocketAddr) -> Result<Self> {
        let ports = open_connections(netns, server)?;
        ensure!(!ports.is_empty(), "nothing is connected to {server}");
        let set = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (address, port) = (server.ip(), server.port());
        let rules = format!(
            "table inet {TABLE} {{
                chain out {{ type filter hook output priority 0;
                    ip daddr {address} tcp dport {port} tcp sport {{ {set} }} drop; }}
                chain in {{ type filter hook input priority 0;
                    ip saddr {address} tcp sport {port} tcp dport {{ {set} }} drop; }}
            }}"
        );
        nft(netns, &rules)?;
        Ok(Self { netns: netns.clone() })
    }
}

impl Drop for PacketDrop {
    fn drop(&mut self) {
        if let Err(error) = nft(&self.netns, &format!("delete table inet {TABLE}")) {
            eprintln!("{error:#}");
        }
    }
}

/// Source ports of the established connections to `server`.
fn open_connections(netns: &NetNs, server: SocketAddr) -> Result<Vec<u16>> {
    let text = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"))?;
    let wanted = proc_address(server).context("an IPv4 address")?;
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let [_, local, remote, state] = words[..] else { return None };
        let local = local.split_once(':')?.1;
        (remote == wanted && state == ESTABLISHED).then(|| u16::from_str_radix(local, 16).ok())?
    };
    Ok(text.lines().filter_map(port).collect())
}

/// An address as `/proc/net/tcp` writes it: the bytes in memory's order as one number.
fn proc_address(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

fn nft(netns: &NetNs, rules: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut nft = netns.start(&mut command).context("starting `nft`: install nftables")?;
    nft.stdin.take().context("no standard input of `nft`")?.write_all(rules.as_bytes())?;
    let output = nft.wait_with_output()?;
    ensure!(output.status.success(), "nft: {}\n{rules}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::proc_address;

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_written_as_the_kernel_does() {
        let address = "192.0.2.3:6443".parse().expect("an address in a test");
        assert_eq!(proc_address(address).as_deref(), Some("030200C0:192B"));
    }
}
