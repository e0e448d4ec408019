//! How a packet is written: by helpers, in one store, by the program itself, and at XDP.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};
use aya::programs::TestRun as _;
use aya::programs::TestRunOptions;
use etherparse::PacketHeaders;

use super::REPEAT;
use super::comparison::Comparison;
use super::programs::{Programs, run};
use crate::packet::frames::{ACK, tcp};
use crate::packet::measure::FAMILIES;

/// What each does, its program, and whether that is at XDP. For IPv4 and IPv6.
const ARMS: [&[(&str, &str)]; 2] = [
    &[
        ("two checksum helpers, one store", "write_once4"),
        ("five helpers, a field each", "write_five4"),
        ("two checksum helpers, direct access", "write_direct4"),
        ("XDP, direct access", "xdp_write4"),
        ("the first again", "write_once4"),
    ],
    &[
        ("three checksum helpers, one store", "write_once6"),
        ("five helpers, a field each", "write_five6"),
        ("two checksum helpers (BPF_F_IPV6), one store", "write_once_flag6"),
        ("three checksum helpers, direct access", "write_direct6"),
        ("two checksum helpers (BPF_F_IPV6), direct access", "write_direct_flag6"),
        ("XDP, direct access", "xdp_write6"),
        ("the first again", "write_once6"),
    ],
];

pub fn measure(programs: &Programs, rounds: u32, stop: &AtomicBool) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for (family, arms) in ARMS.into_iter().enumerate() {
        let packet = packet(family)?;
        for (_, program) in arms {
            check(programs, program, &packet)?;
        }
        let names: Vec<&str> = arms.iter().map(|(name, _)| *name).collect();
        let mut comparison =
            Comparison::new(format!("{}: writing an address and a port", FAMILIES[family]), "ns", &names);
        for round in 0..=rounds {
            comparison.round(round > 0, stop, |arm| {
                let program = arms[arm].1;
                if program.starts_with("xdp") {
                    let nothing = run(programs.xdp("nothing_xdp")?, &packet, REPEAT)?.ns;
                    return Ok(run(programs.xdp(program)?, &packet, REPEAT)?.ns - nothing);
                }
                let nothing = run(programs.tc("nothing")?, &packet, REPEAT)?.ns;
                Ok(run(programs.tc(program)?, &packet, REPEAT)?.ns - nothing)
            })?;
        }
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

fn packet(family: usize) -> Result<Vec<u8>> {
    let ends: [IpAddr; 2] = if family == 0 {
        ["10.1.2.3".parse()?, "10.96.0.10".parse()?]
    } else {
        ["fd01::3".parse()?, "fd02::a".parse()?]
    };
    let [from, to] = ends.map(|end| SocketAddr::new(end, 4_000));
    Ok(tcp(from, to, ACK, 1, 1))
}

/// The packet afterwards is another one, and its checksums are right.
fn check(programs: &Programs, name: &str, packet: &[u8]) -> Result<()> {
    let mut bytes = vec![0; 256];
    let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut bytes), ..TestRunOptions::default() };
    let ran = if name.starts_with("xdp") {
        programs.xdp(name)?.test_run(options)?
    } else {
        programs.tc(name)?.test_run(options)?
    };
    bytes.truncate(ran.data_size_out as usize);
    ensure!(bytes != packet && is_right(&bytes)?, "{name} writes a packet whose checksums are wrong");
    Ok(())
}

fn is_right(packet: &[u8]) -> Result<bool> {
    let headers = PacketHeaders::from_ethernet_slice(packet)?;
    let (Some(net), Some(etherparse::TransportHeader::Tcp(tcp))) = (headers.net, headers.transport) else {
        return Ok(false);
    };
    let data = headers.payload.slice();
    Ok(match net {
        etherparse::NetHeaders::Ipv4(ip, _) => {
            ip.header_checksum == ip.calc_header_checksum() && tcp.checksum == tcp.calc_checksum_ipv4(&ip, data)?
        }
        etherparse::NetHeaders::Ipv6(ip, _) => tcp.checksum == tcp.calc_checksum_ipv6(&ip, data)?,
        etherparse::NetHeaders::Arp(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_checksum_is_seen() {
        for family in 0..2 {
            let mut packet = packet(family).expect("addresses are constants");
            assert!(is_right(&packet).expect("a packet"));
            let last = packet.len() - 1;
            packet[last] ^= 1;
            assert!(!is_right(&packet).expect("a packet"));
        }
    }
}
