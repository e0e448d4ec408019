//! The SNAT port range: which ports masqueraded flows get that cannot keep their client's.

use std::fs;

use lb_common::limits::{NODE_PORT_FIRST, NODE_PORT_LAST};
use lb_common::state::SourcePorts;

use crate::settings::PortRange;

const LOCAL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// While so many others are in one piece, the range has no port that the kernel gives to sockets: the node's own packets from a SNAT port cost
/// two look-ups.
const ENOUGH: u16 = 16_384;
/// So many ports are worth to be reused while they rest.
const FEWEST_REUSED: u16 = 1_024;

/// What this network namespace gives to sockets that ask for no port of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    range: PortRange,
    /// Ports of the range that are given to none (`net.ipv4.ip_local_reserved_ports`).
    reserved: Vec<PortRange>,
}

impl Local {
    /// `None`: the kernel does not say.
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string(LOCAL_RANGE).ok()?, &fs::read_to_string(RESERVED).unwrap_or_default())
    }

    pub(super) fn parse(range: &str, reserved: &str) -> Option<Self> {
        let mut ends = range.split_whitespace().map(str::parse);
        let range = PortRange { first: ends.next()?.ok()?, last: ends.next()?.ok()? };
        let one = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
        };
        Some(Self { range, reserved: reserved.trim().split(',').filter_map(one).collect() })
    }

    /// Whether a socket may be given this port.
    fn gives(&self, port: u16) -> bool {
        let has = |range: &PortRange| range.first <= port && port <= range.last;
        has(&self.range) && !self.reserved.iter().any(has)
    }

    /// The first ports of the range that sockets may take.
    pub(super) fn taken(&self, ports: PortRange) -> Option<PortRange> {
        pieces(ports, |port| self.gives(port)).into_iter().next()
    }
}

/// The SNAT ports of an agent that is started on this node without `--snat-ports`.
pub fn of_default_start() -> SourcePorts {
    choose(None, Local::read().as_ref())
}

/// The ports for the programs. `asked`: `--snat-ports`; `None`: the default.
///
/// The programs ask the node's sockets before they take a port, and translate the node's own connection that comes later. So the ports of sockets may
/// be in the range: where they are asked for, and by default where few others are left.
pub(super) fn choose(asked: Option<PortRange>, local: Option<&Local>) -> SourcePorts {
    let Some(local) = local else {
        return asked.map_or(SourcePorts::DEFAULT, |asked| SourcePorts::of_range(asked.first, asked.count()));
    };
    let ports = asked.map_or_else(|| free(local), |asked| SourcePorts::of_range(asked.first, asked.count()));
    SourcePorts { local_first: local.range.first, local_last: local.range.last, ..ports }
}

/// The default range on a node with such ports of sockets.
fn free(local: &Local) -> SourcePorts {
    let all = PortRange { first: PortRange::FIRST_UNPRIVILEGED, last: u16::MAX };
    let is_node_port = |port: u16| (NODE_PORT_FIRST..=NODE_PORT_LAST).contains(&port);
    let apart = pieces(all, |port| !is_node_port(port) && !local.gives(port));
    let has_enough = apart.iter().any(|piece| piece.count() >= ENOUGH);
    let pieces = if has_enough { apart } else { pieces(all, |port| !is_node_port(port)) };
    let Some(largest) = pieces.iter().max_by_key(|piece| piece.count()) else { return SourcePorts::DEFAULT };
    // Each packet to a port that is reused costs a look-up: rather the highest ones, as most servers have lower ones.
    let is_beside = |piece: &&PortRange| piece.count() >= FEWEST_REUSED && piece.common(local.range).is_none();
    let reused = pieces.iter().rev().find(is_beside).unwrap_or(largest);
    let reused = SourcePorts::of_range(reused.first, reused.count());
    SourcePorts { first: largest.first, count: largest.count(), ..reused }
}

/// The runs of ports for which `has` holds.
fn pieces(ports: PortRange, has: impl Fn(u16) -> bool) -> Vec<PortRange> {
    let mut pieces: Vec<PortRange> = Vec::new();
    for port in (ports.first..=ports.last).filter(|port| has(*port)) {
        match pieces.last_mut() {
            Some(piece) if piece.last.checked_add(1) == Some(port) => piece.last = port,
            _ => pieces.push(PortRange { first: port, last: port }),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(range: &str, reserved: &str) -> Local {
        Local::parse(range, reserved).expect("as the kernel writes it")
    }

    /// The range, and what of it, or beside it, is reused.
    fn chosen(asked: Option<&str>, local: Option<&Local>) -> [String; 2] {
        let ports = choose(asked.map(|text| text.parse().expect("valid")), local);
        let text = |first: u16, count: u16| PortRange { first, last: first + (count - 1) }.to_string();
        [text(ports.first, ports.count), text(ports.reused_first, ports.reused_count)]
    }

    #[test]
    fn the_default_is_all_that_neither_sockets_nor_node_ports_have() {
        assert_eq!(choose(None, None), SourcePorts::DEFAULT);
        for (range, reserved, expected) in [
            ("32768\t60999\n", "\n", ["1024-29999", "61000-65535"]),
            ("32768 65535", "", ["1024-29999", "25464-29999"]),
            ("20000 60999", "", ["1024-19999", "61000-65535"]),
            ("50000 65000", "", ["1024-29999", "45464-49999"]),
            ("32768 65535", "61000-65535", ["1024-29999", "25464-29999"]),
            // Few others are left: sockets are asked for each port.
            ("1024 65535", "", ["32768-65535", "61000-65535"]),
            ("15000 62000", "", ["32768-65535", "61000-65535"]),
            // Reserved ports are given to no socket.
            ("1024 65535", "40000-65535", ["40000-65535", "61000-65535"]),
        ] {
            assert_eq!(chosen(None, Some(&local(range, reserved))), expected, "{range} {reserved}");
        }
    }

    #[test]
    fn ports_that_are_asked_for_are_taken_as_they_are() {
        let wide = local("1024 65000", "");
        for (asked, reused) in
            [("61000-65535", "61000-65535"), ("23000-23063", "23000-23063"), ("2000-9999", "5464-9999")]
        {
            assert_eq!(chosen(Some(asked), Some(&wide)), [asked, reused]);
        }
        assert_eq!(choose(None, Some(&wide)).local_last, 65_000);
    }

    #[test]
    fn the_first_ports_that_sockets_may_take_are_found() {
        let all = PortRange { first: 30_000, last: 32_767 };
        assert_eq!(local("32768 60999", "").taken(all), None);
        let found = local("1024 65535", "30000-30009,31000").taken(all).map(|range| range.to_string());
        assert_eq!(found.as_deref(), Some("30010-30999"));
    }
}
