//! Behind which port of a bridge each pod is: read from the bridges' own tables, told to the programs.

use std::collections::BTreeMap;

use aya::maps::{HashMap, MapData, MapError};
use futures::TryStreamExt as _;
use lb_common::abi::{BridgePort, BridgePortKey};
use netlink_packet_route::{
    AddressFamily,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use rtnetlink::Handle;

use super::super::{DatapathError, point::Role};

type Ports = BTreeMap<BridgePortKey, BridgePort>;

/// What the programs were told.
#[derive(Debug)]
pub(in super::super) struct BridgePorts {
    map: HashMap<MapData, BridgePortKey, BridgePort>,
    told: Option<Ports>,
}

impl BridgePorts {
    pub fn new(map: HashMap<MapData, BridgePortKey, BridgePort>) -> Self {
        Self { map, told: None }
    }

    /// Reads the tables and tells the programs what differs. An address that a bridge has forgotten for its silence stays where it was, as
    /// long as the link is there.
    pub async fn follow(
        &mut self,
        handle: &mut Handle,
        names: &BTreeMap<u32, (String, Role)>,
    ) -> Result<(), DatapathError> {
        let is_bridge = |(_, role): &(String, Role)| *role == Role::Bridge;
        if self.told.is_some() && !names.values().any(is_bridge) && self.told.as_ref().is_some_and(Ports::is_empty) {
            return Ok(());
        }
        let before = match self.told.take() {
            Some(told) => told,
            None => self.map.iter().collect::<Result<_, _>>().map_err(aya::EbpfError::MapError)?,
        };
        let is_pod = |link: u32| names.get(&link).is_some_and(|(_, role)| *role == Role::Pod);
        let mut ports: Ports = before.iter().map(|(key, port)| (*key, *port)).collect();
        let now = list(handle).await?;
        let stays = |key: &BridgePortKey, port: &BridgePort| now.get(key).is_none_or(|seen| seen.link == port.link);
        ports.retain(|key, port| is_pod(port.link) && names.contains_key(&key.bridge) && stays(key, port));
        ports.extend(now.iter().filter(|(_, port)| is_pod(port.link)));
        bound(&mut ports);
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
        self.told = Some(ports);
        Ok(())
    }
}

/// So many addresses are believed to be behind one link: whoever sends from any number of them fills no table.
const ADDRESSES_MAX: u32 = 16;

fn bound(ports: &mut Ports) {
    let mut behind: BTreeMap<u32, u32> = BTreeMap::new();
    ports.retain(|_, port| {
        let count = behind.entry(port.link).or_default();
        *count += 1;
        *count <= ADDRESSES_MAX
    });
}

async fn list(handle: &mut Handle) -> Result<Ports, DatapathError> {
    let mut lines = Box::pin(handle.neighbours().get().set_address_family(AddressFamily::Bridge).execute());
    let mut ports = Ports::new();
    while let Some(line) =
        lines.try_next().await.map_err(DatapathError::netlink("list the addresses behind bridges"))?
    {
        ports.extend(port(&line));
    }
    Ok(ports)
}

/// A line of a bridge's table, unless it is an address of the bridge's own.
fn port(line: &NeighbourMessage) -> Option<(BridgePortKey, BridgePort)> {
    if line.header.state == NeighbourState::Permanent {
        return None;
    }
    let mut key = BridgePortKey { bridge: 0, address: [0; 6], pad: 0 };
    for attribute in &line.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => key.address = address.as_slice().try_into().ok()?,
            NeighbourAttribute::Controller(bridge) => key.bridge = *bridge,
            // The same address may be another one's in another of these.
            NeighbourAttribute::Vlan(_) => return None,
            _ => {}
        }
    }
    (key.bridge != 0 && key.address != [0; 6]).then_some((key, BridgePort { link: line.header.ifindex }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(state: NeighbourState, attributes: Vec<NeighbourAttribute>) -> NeighbourMessage {
        let mut line = NeighbourMessage::default();
        (line.header.ifindex, line.header.state, line.attributes) = (7, state, attributes);
        line
    }

    #[test]
    fn a_pod_that_sends_from_many_addresses_has_a_few() {
        let key = |address: u8| BridgePortKey { bridge: 3, address: [2, 0, 0, 0, 0, address], pad: 0 };
        let many = (0..200).map(|address| (key(address), BridgePort { link: 7 }));
        let mut ports: Ports = many.chain([(key(250), BridgePort { link: 8 })]).collect();
        bound(&mut ports);
        assert_eq!(ports.values().filter(|port| port.link == 7).count(), 16);
        assert!(ports.contains_key(&key(250)), "others keep theirs");
    }

    #[test]
    fn addresses_of_the_bridge_and_of_virtual_networks_are_no_pods() {
        let address = || NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]);
        let bridge = || NeighbourAttribute::Controller(3);
        let key = BridgePortKey { bridge: 3, address: [2, 0, 0, 0, 0, 9], pad: 0 };
        let learnt = line(NeighbourState::Reachable, vec![address(), bridge()]);
        assert_eq!(port(&learnt), Some((key, BridgePort { link: 7 })));
        assert_eq!(port(&line(NeighbourState::Permanent, vec![address(), bridge()])), None);
        assert_eq!(
            port(&line(NeighbourState::Reachable, vec![address(), bridge(), NeighbourAttribute::Vlan(5)])),
            None
        );
        assert_eq!(port(&line(NeighbourState::Reachable, vec![address()])), None, "no bridge's");
    }
}
