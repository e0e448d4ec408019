//! What the kernel knows behind a bridge: the neighbours that it sends to, and the port of one of them.
//!
//! Each port is asked for by itself. A bridge's forwarding table is as large as the pods on it make it, and a list of it walks the whole table
//! once for each port.

use std::collections::BTreeSet;

use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use rtnetlink::Handle;

use super::super::DatapathError;
use lb_netlink::route::request;

/// An address of the link layer.
pub(super) type Address = [u8; 6];

/// So many neighbours of one bridge are read, of both families together. A node keeps 1,024 of each family by default (`gc_thresh3`,
/// Documentation/networking/ip-sysctl.rst).
pub(super) const NEIGHBOURS_MAX: usize = 4_096;

/// The addresses of a bridge's neighbours; `None`: there are more than [`NEIGHBOURS_MAX`]. The kernel filters them (`NDA_IFINDEX`, since
/// Linux 4.4).
pub(super) async fn of(handle: &Handle, bridge: u32) -> Result<Option<BTreeSet<Address>>, DatapathError> {
    let mut addresses = BTreeSet::new();
    let mut count = 0;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = handle.neighbours().get().set_address_family(family);
        request.message_mut().attributes.push(NeighbourAttribute::IfIndex(bridge));
        let mut lines = Box::pin(request.execute());
        let failed = || DatapathError::netlink("list the neighbours of a bridge");
        while let Some(line) = lines.try_next().await.map_err(failed())? {
            count += 1;
            if count > NEIGHBOURS_MAX {
                return Ok(None);
            }
            addresses.extend(link_layer(&line).filter(|_| line.header.ifindex == bridge));
        }
    }
    Ok(Some(addresses))
}

fn link_layer(line: &NeighbourMessage) -> Option<Address> {
    line.attributes.iter().find_map(|attribute| {
        let NeighbourAttribute::LinkLayerAddress(address) = attribute else { return None };
        address.as_slice().try_into().ok()
    })
}

/// The link behind which the bridge finds this address; `None`: it does not know, or the address is its own. Since Linux 5.0 (`RTM_GETNEIGH`
/// of the family of bridges without `NLM_F_DUMP`).
pub(super) async fn port(handle: &mut Handle, bridge: u32, address: Address) -> Result<Option<u32>, DatapathError> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.attributes =
        vec![NeighbourAttribute::LinkLayerAddress(address.to_vec()), NeighbourAttribute::Controller(bridge)];
    match request(handle, RouteNetlinkMessage::GetNeighbour(message), 0).await {
        Ok(answers) => Ok(answers
            .iter()
            .find_map(|answer| if let RouteNetlinkMessage::NewNeighbour(line) = answer { link(line) } else { None })),
        // The last two: the bridge itself has gone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => Ok(None),
        Err(error) => Err(DatapathError::kernel("ask a bridge for an address")(error)),
    }
}

/// The link of a line of a bridge's table, unless it is an address of the bridge's own.
fn link(line: &NeighbourMessage) -> Option<u32> {
    // In another virtual network the address may be another host's.
    let is_virtual = line.attributes.iter().any(|attribute| matches!(attribute, NeighbourAttribute::Vlan(_)));
    let is_own = line.header.state == NeighbourState::Permanent;
    (!is_own && !is_virtual && line.header.ifindex != 0).then_some(line.header.ifindex)
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
    fn addresses_of_the_bridge_and_of_virtual_networks_are_no_pods() {
        let address = || NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]);
        assert_eq!(link(&line(NeighbourState::Reachable, vec![address()])), Some(7));
        assert_eq!(link(&line(NeighbourState::Permanent, vec![address()])), None);
        assert_eq!(link(&line(NeighbourState::Reachable, vec![address(), NeighbourAttribute::Vlan(5)])), None);
    }

    #[test]
    fn a_neighbour_without_an_address_is_none() {
        let known = vec![NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9])];
        assert_eq!(link_layer(&line(NeighbourState::Stale, known)), Some([2, 0, 0, 0, 0, 9]));
        assert_eq!(link_layer(&line(NeighbourState::Incomplete, vec![])), None);
        let tunnel = vec![NeighbourAttribute::LinkLayerAddress(vec![192, 0, 2, 1])];
        assert_eq!(link_layer(&line(NeighbourState::Stale, tunnel)), None);
    }
}
