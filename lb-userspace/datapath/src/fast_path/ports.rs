//! The bridge port of each pod: asked of the bridges, written to a map for the programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use aya::maps::{HashMap, MapData, MapError};
use lb_common::abi::{BridgePort, BridgePortKey};
use rtnetlink::Handle;

use super::super::{DatapathError, point::Role};
use super::neighbours::{self, NEIGHBOURS_MAX};

type Ports = BTreeMap<BridgePortKey, BridgePort>;
type Names = BTreeMap<u32, (String, Role)>;

/// The map of bridge ports.
#[derive(Debug)]
pub(in super::super) struct BridgePorts {
    map: HashMap<MapData, BridgePortKey, BridgePort>,
    written: Option<Ports>,
    /// The address that was asked for last.
    last: Option<BridgePortKey>,
    /// Bridges whose pods take the stack, and why.
    closed: BTreeMap<u32, String>,
}

impl BridgePorts {
    pub fn new(map: HashMap<MapData, BridgePortKey, BridgePort>) -> Self {
        Self { map, written: None, last: None, closed: BTreeMap::new() }
    }

    /// Bridges whose pods take the stack, and why.
    pub fn closed(&self) -> impl Iterator<Item = &String> {
        self.closed.values()
    }

    /// Asks bridges where the node's neighbours are, and writes to the map what differs.
    pub async fn follow(&mut self, handle: &mut Handle, names: &Names) -> Result<(), DatapathError> {
        let bridges: Vec<(u32, &str)> = names
            .iter()
            .filter(|(_, (_, role))| *role == Role::Bridge)
            .map(|(bridge, (name, _))| (*bridge, name.as_str()))
            .collect();
        self.closed.clear();
        if bridges.is_empty() && self.written.as_ref().is_some_and(Ports::is_empty) {
            return Ok(());
        }
        let before = match self.written.take() {
            Some(written) => written,
            None => self.map.iter().collect::<Result<_, _>>().map_err(aya::EbpfError::MapError)?,
        };
        let mut wanted = BTreeSet::new();
        for (bridge, name) in bridges {
            let Some(addresses) = neighbours::of(handle, bridge).await? else {
                self.closed.insert(bridge, format!("{name}: it has more than {NEIGHBOURS_MAX} neighbours"));
                continue;
            };
            wanted.extend(addresses.into_iter().map(|address| BridgePortKey { bridge, address, pad: 0 }));
        }
        let mut now = BTreeMap::new();
        for key in due(&wanted, self.last) {
            now.insert(key, neighbours::port(handle, key.bridge, key.address).await?);
            self.last = Some(key);
        }
        let ports = merged(&before, &now, |bridge| !self.closed.contains_key(&bridge), names);
        for key in before.keys().filter(|key| !ports.contains_key(key)) {
            match self.map.remove(key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(aya::EbpfError::MapError(error).into()),
            }
        }
        for (key, port) in ports.iter().filter(|(key, port)| before.get(key) != Some(port)) {
            self.map.insert(key, port, 0).map_err(aya::EbpfError::MapError)?;
        }
        self.written = Some(ports);
        Ok(())
    }
}

/// So many addresses are asked for in one round; the others follow in the next ones.
const ASKED_MAX: usize = 256;

/// Those that have their turn after the one that was asked for last.
fn due(wanted: &BTreeSet<BridgePortKey>, last: Option<BridgePortKey>) -> Vec<BridgePortKey> {
    let Some(last) = last else { return wanted.iter().copied().take(ASKED_MAX).collect() };
    let after = wanted.range((Bound::Excluded(last), Bound::Unbounded));
    after.chain(wanted.range(..=last)).copied().take(ASKED_MAX).collect()
}

/// The ports of pods after a turn. An address that a bridge has forgotten for its silence stays where it was, as long as the link is there.
fn merged(
    before: &Ports,
    now: &BTreeMap<BridgePortKey, Option<u32>>,
    is_open: impl Fn(u32) -> bool,
    names: &Names,
) -> Ports {
    let is_pod = |link: u32| names.get(&link).is_some_and(|(_, role)| *role == Role::Pod);
    let stays = |key: &BridgePortKey, port: &BridgePort| {
        now.get(key).is_none_or(|seen| seen.is_none_or(|link| link == port.link))
    };
    let mut ports = before.clone();
    ports.retain(|key, port| {
        is_pod(port.link) && names.contains_key(&key.bridge) && is_open(key.bridge) && stays(key, port)
    });
    let found = now.iter().filter_map(|(key, link)| Some((*key, BridgePort { link: (*link)? })));
    ports.extend(found.filter(|(_, port)| is_pod(port.link)));
    bound(&mut ports);
    ports
}

/// So many addresses are believed to be behind one link: a pod that sends from any number of them fills no table.
const ADDRESSES_MAX: u32 = 16;

fn bound(ports: &mut Ports) {
    let mut behind: BTreeMap<u32, u32> = BTreeMap::new();
    ports.retain(|_, port| {
        let count = behind.entry(port.link).or_default();
        *count += 1;
        *count <= ADDRESSES_MAX
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: u32 = 3;
    const PODS: [u32; 2] = [7, 8];

    fn key(number: u16) -> BridgePortKey {
        let [high, low] = number.to_be_bytes();
        BridgePortKey { bridge: BRIDGE, address: [2, 0, 0, 0, high, low], pad: 0 }
    }

    fn names() -> Names {
        let pods = PODS.map(|link| (link, (format!("veth{link}"), Role::Pod)));
        pods.into_iter()
            .chain([(BRIDGE, ("cni0".to_owned(), Role::Bridge)), (2, ("eth0".to_owned(), Role::External))])
            .collect()
    }

    fn turn(before: &Ports, now: &[(u16, Option<u32>)]) -> Ports {
        let now = now.iter().map(|(number, link)| (key(*number), *link)).collect();
        merged(before, &now, |_| true, &names())
    }

    #[test]
    fn a_pod_that_sends_from_many_addresses_has_a_few() {
        let many = (0..200).map(|number| (key(number), BridgePort { link: PODS[0] }));
        let mut ports: Ports = many.chain([(key(250), BridgePort { link: PODS[1] })]).collect();
        bound(&mut ports);
        assert_eq!(ports.values().filter(|port| port.link == PODS[0]).count(), 16);
        assert!(ports.contains_key(&key(250)), "others keep theirs");
    }

    #[test]
    fn every_address_has_its_turn_and_no_turn_asks_for_more_than_its_part() {
        let wanted: BTreeSet<_> = (0..1_000).map(key).collect();
        let (mut last, mut asked) = (None, BTreeSet::new());
        for _ in 0..4 {
            let part = due(&wanted, last);
            assert_eq!(part.len(), ASKED_MAX);
            last = part.last().copied();
            asked.extend(part);
        }
        assert_eq!(asked, wanted);
        let few: BTreeSet<_> = [1, 2, 3].map(key).into();
        assert_eq!(due(&few, last).len(), 3, "each of a few in each turn, once");
    }

    #[test]
    fn an_address_stays_while_it_is_silent_and_moves_with_the_bridges_table() {
        let at = |link| Ports::from([(key(1), BridgePort { link })]);
        let ports = turn(&Ports::new(), &[(1, Some(PODS[0])), (2, Some(2)), (3, None)]);
        assert_eq!(ports, at(PODS[0]), "neither what is behind another link nor what is not known");
        assert_eq!(turn(&ports, &[(1, None)]), ports, "forgotten for its silence");
        assert_eq!(turn(&ports, &[]), ports, "not asked for in this turn");
        assert_eq!(turn(&ports, &[(1, Some(PODS[1]))]), at(PODS[1]));
        assert_eq!(turn(&ports, &[(1, Some(2))]), Ports::new(), "no pod's any more");
    }

    #[test]
    fn a_closed_bridge_and_a_link_that_is_gone_keep_nothing() {
        let ports = Ports::from([(key(1), BridgePort { link: PODS[0] })]);
        assert_eq!(merged(&ports, &BTreeMap::new(), |bridge| bridge != BRIDGE, &names()), Ports::new());
        let mut others = names();
        others.remove(&PODS[0]);
        assert_eq!(merged(&ports, &BTreeMap::new(), |_| true, &others), Ports::new());
    }
}
