//! The source ports of masqueraded flows: none that a socket of this node may take at any time.

use std::fs;

use lb_common::state::SourcePorts;

use super::DatapathError;
use crate::settings::PortRange;

const LOCAL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// What is left of the default range must be at least so many ports, or all of it is taken, with a warning.
const FEWEST: u16 = 256;

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

    /// The first ports of the range that sockets may take.
    pub(super) fn taken(&self, ports: PortRange) -> Option<PortRange> {
        let common = ports.common(self.range)?;
        let is_free = |port: &u16| self.reserved.iter().any(|range| range.first <= *port && *port <= range.last);
        let first = (common.first..=common.last).find(|port| !is_free(port))?;
        let last = (first..=common.last).take_while(|port| !is_free(port)).last()?;
        Some(PortRange { first, last })
    }

    /// The larger part of the range on either side of what sockets may take.
    fn rest(&self, ports: PortRange) -> Option<PortRange> {
        let below =
            self.range.first.checked_sub(1).map(|last| PortRange { first: ports.first, last: ports.last.min(last) });
        let above =
            self.range.last.checked_add(1).map(|first| PortRange { first: ports.first.max(first), last: ports.last });
        let sides = below.into_iter().chain(above).filter(|part| part.first <= part.last);
        sides.max_by_key(|part| part.count()).filter(|part| part.count() >= FEWEST)
    }
}

/// The source ports of masqueraded flows of an agent that is started on this node without `--snat-ports`.
pub fn of_default_start() -> SourcePorts {
    choose(None, Local::read().as_ref()).map_or(SourcePorts::DEFAULT, |(ports, _)| ports)
}

/// The ports for the programs, and what is to be warned of. `asked`: `--snat-ports`; `None`: the default.
///
/// Ports that are asked for and that sockets may take are refused. The default gives way to them: it is no reason not to start.
pub(super) fn choose(
    asked: Option<PortRange>,
    local: Option<&Local>,
) -> Result<(SourcePorts, Option<String>), DatapathError> {
    let default = SourcePorts::DEFAULT;
    let ports = asked.unwrap_or(PortRange { first: default.first, last: default.first + (default.count - 1) });
    let of = |ports: PortRange, local: PortRange| SourcePorts {
        first: ports.first,
        count: ports.count(),
        local_first: local.first,
        local_last: local.last,
    };
    let Some(local) = local else {
        return Ok((of(ports, PortRange { first: default.local_first, last: default.local_last }), None));
    };
    let Some(taken) = local.taken(ports) else { return Ok((of(ports, local.range), None)) };
    if asked.is_some() {
        return Err(DatapathError::SourcePorts { ports, taken, local: local.range });
    }
    let remedy = format!(
        "sysctl net.ipv4.ip_local_reserved_ports={ports} keeps sockets off them, or --snat-ports names others outside of \
         net.ipv4.ip_local_port_range ({})",
        local.range
    );
    let (ports, warning) = if let Some(rest) = local.rest(ports) {
        (rest, format!("only {} source ports ({rest}) stand in for those of clients outside: {remedy}", rest.count()))
    } else {
        (ports, format!("sockets of this node may take the source ports of masqueraded flows ({ports}): {remedy}"))
    };
    Ok((of(ports, local.range), Some(warning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> PortRange {
        text.parse().expect("valid")
    }

    fn local(range: &str, reserved: &str) -> Local {
        Local::parse(range, reserved).expect("as the kernel writes it")
    }

    #[test]
    fn the_kernels_default_leaves_ours_alone() {
        let (ports, warning) = choose(None, Some(&local("32768\t60999\n", "\n"))).expect("apart");
        assert_eq!((ports, warning), (SourcePorts::DEFAULT, None));
        assert_eq!(choose(None, None).expect("not known").0, SourcePorts::DEFAULT);
    }

    #[test]
    fn ports_that_sockets_may_take_are_refused_with_the_remedy() {
        let wide = local("1024 65000", "");
        let error = choose(Some(range("61000-65535")), Some(&wide)).expect_err("overlap").to_string();
        for part in ["--snat-ports 61000-65535", "61000-65000", "1024-65000", "ip_local_reserved_ports"] {
            assert!(error.contains(part), "{error}");
        }
        // Reserved ports are given to no socket.
        let reserved = local("1024 65000", "8080,61000-62000,62001-65535");
        let (ports, warning) = choose(Some(range("61000-65535")), Some(&reserved)).expect("reserved");
        assert_eq!((ports.first, ports.count, ports.local_last, warning), (61_000, 4_536, 65_000, None));
    }

    #[test]
    fn the_default_gives_way_with_a_warning() {
        let (ports, warning) = choose(None, Some(&local("15000 62000", ""))).expect("never refused");
        assert_eq!((ports.first, ports.count), (62_001, 3_535));
        assert!(warning.is_some_and(|warning| warning.contains("only 3535 source ports")));
        let (ports, warning) = choose(None, Some(&local("1024 65535", ""))).expect("never refused");
        assert_eq!((ports.first, ports.count, ports.local_first), (61_000, 4_536, 1024));
        assert!(warning.is_some_and(|warning| warning.contains("may take the source ports")));
    }
}
