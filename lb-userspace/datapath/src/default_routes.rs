//! The default routes of a network namespace, as the kernel announces them: pure.

use std::collections::BTreeMap;

use netlink_packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteType},
};

/// So many rounds a deleted route counts at least: a lease that is renewed deletes its route, and adds it again.
const ROUNDS_KEPT: u8 = 1;

/// The table that is asked after the main one (`linux/rtnetlink.h`).
const RT_TABLE_DEFAULT: u32 = 253;

/// Default routes, with the rounds since each was deleted; `None`: it is there. What a link that goes down takes along is kept: the kernel says nothing
/// of it for IPv4, and the link may come up again.
#[derive(Debug, Default)]
pub(super) struct DefaultRoutes(BTreeMap<Route, Option<u8>>);

/// What tells default routes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    ifindex: u32,
    is_v4: bool,
    table: u32,
    metric: u32,
}

impl Route {
    /// Packets of the node itself take it, whatever their source and mark.
    fn is_of_main_table(self) -> bool {
        [u32::from(RouteHeader::RT_TABLE_MAIN), RT_TABLE_DEFAULT].contains(&self.table)
    }
}

impl DefaultRoutes {
    /// Notes that a route was added; `true`: it is a default route, of which nothing was known.
    pub fn add(&mut self, message: &RouteMessage) -> bool {
        let before = self.0.len();
        self.0.extend(routes(message).map(|route| (route, None)));
        self.0.len() > before
    }

    /// Notes that a route was deleted. It counts for some time.
    pub fn delete(&mut self, message: &RouteMessage) {
        for route in routes(message) {
            if let Some(rounds) = self.0.get_mut(&route) {
                rounds.get_or_insert(0);
            }
        }
    }

    /// A link is gone.
    pub fn drop_link(&mut self, ifindex: u32) {
        self.0.retain(|route, _| route.ifindex != ifindex);
    }

    /// A round has listed everything; these links are there.
    pub fn end_round(&mut self, is_there: impl Fn(u32) -> bool) {
        self.0.retain(|route, rounds| {
            let has_stayed_away = *rounds > Some(ROUNDS_KEPT);
            *rounds = rounds.map(|rounds| rounds + 1);
            is_there(route.ifindex) && !has_stayed_away
        });
    }

    /// Whether a default route of any table leads by this link: policy routing keeps some in tables of their own.
    pub fn lead_by(&self, ifindex: u32) -> bool {
        self.0.keys().any(|route| route.ifindex == ifindex)
    }

    /// Whether one of the main table does.
    pub fn lead_all_by(&self, ifindex: u32) -> bool {
        self.0.keys().any(|route| route.ifindex == ifindex && route.is_of_main_table())
    }
}

/// The default routes of a message, one by each link.
fn routes(message: &RouteMessage) -> impl Iterator<Item = Route> {
    let header = &message.header;
    let is_ours = header.destination_prefix_length == 0
        && header.kind == RouteType::Unicast
        && matches!(header.address_family, AddressFamily::Inet | AddressFamily::Inet6);
    let (mut links, mut table, mut metric) = (Vec::new(), u32::from(header.table), 0);
    for attribute in message.attributes.iter().filter(|_| is_ours) {
        if let RouteAttribute::Oif(ifindex) = attribute {
            links.push(*ifindex);
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            links.extend(hops.iter().map(|hop| hop.interface_index));
        } else if let RouteAttribute::Table(number) = attribute {
            table = *number;
        } else if let RouteAttribute::Priority(number) = attribute {
            metric = *number;
        }
    }
    let is_v4 = header.address_family == AddressFamily::Inet;
    links.into_iter().map(move |ifindex| Route { ifindex, is_v4, table, metric })
}
