//! Requests about links, routes and what is attached to links: single ones by [`Socket`], others by the async crate `rtnetlink`.

use std::{collections::BTreeMap, future::Future, io, net::IpAddr};

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, parse_ip};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
    route::{RouteAttribute, RouteMessage},
};
use rtnetlink::Handle;

use super::socket::{LIST_ATTEMPTS, Socket, unsteady};

/// Runs requests from code that may or may not be async, in a thread of this network namespace. An error: the socket cannot be opened.
pub fn in_thread<T, F>(requests: impl FnOnce(Handle) -> F + Send) -> io::Result<T>
where
    T: Send,
    F: Future<Output = T>,
{
    let run = || {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            let connection = tokio::spawn(connection);
            let result = requests(handle).await;
            connection.abort();
            Ok(result)
        })
    };
    let joined = std::thread::scope(|scope| scope.spawn(run).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sends a request, and returns the messages of the answer. A list that changed while it was read is read again.
pub async fn request(
    handle: &mut Handle,
    message: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..LIST_ATTEMPTS {
        let mut request = NetlinkMessage::from(message.clone());
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = handle.request(request).map_err(io::Error::other)?;
        let (mut messages, mut is_whole) = (Vec::new(), true);
        while let Some(answer) = answers.next().await {
            is_whole &= answer.header.flags & NLM_F_DUMP_INTR == 0;
            if let NetlinkPayload::InnerMessage(message) = answer.payload {
                messages.push(message);
            } else if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(error.to_io());
            }
        }
        if is_whole {
            return Ok(messages);
        }
    }
    Err(unsteady())
}

/// The MTU in bytes of each link of this network namespace, by name. Empty if the kernel does not list the links.
pub fn link_mtus() -> BTreeMap<String, u32> {
    let listed = in_thread(|handle| async move { handle.link().get().execute().try_collect().await });
    let listed: Vec<LinkMessage> = listed.ok().and_then(Result::ok).unwrap_or_default();
    listed.iter().filter_map(name_and_mtu).collect()
}

fn name_and_mtu(link: &LinkMessage) -> Option<(String, u32)> {
    let name =
        link.attributes.iter().find_map(|it| if let LinkAttribute::IfName(name) = it { Some(name) } else { None })?;
    let mtu = link.attributes.iter().find_map(|it| if let LinkAttribute::Mtu(mtu) = it { Some(*mtu) } else { None })?;
    Some((name.clone(), mtu))
}

/// Index of the link that the routing table leads to an address by; `None`: there is no route, or the kernel gives no answer.
pub fn link_to(address: &[u8]) -> Option<u32> {
    let address = parse_ip(address).ok()?;
    let mut route = RouteMessage::default();
    (route.header.address_family, route.header.destination_prefix_length) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    route.attributes.push(RouteAttribute::Destination(address.into()));
    let mut socket = Socket::open(netlink_sys::protocols::NETLINK_ROUTE).ok()??;
    let answered = socket.ask(RouteNetlinkMessage::GetRoute(route), |message| {
        let RouteNetlinkMessage::NewRoute(route) = message else { return None };
        route.attributes.iter().find_map(|it| if let RouteAttribute::Oif(link) = it { Some(*link) } else { None })
    });
    answered.ok()?.last().copied()
}

/// Deletes the link with this index.
pub fn delete_link(index: u32) -> io::Result<()> {
    let Some(mut socket) = Socket::open(netlink_sys::protocols::NETLINK_ROUTE)? else { return Ok(()) };
    let mut link = LinkMessage::default();
    link.header.index = index;
    socket.change(0, RouteNetlinkMessage::DelLink(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_large_packets() {
        assert!(link_mtus().get("lo").is_some_and(|mtu| *mtu >= 1_280));
    }
}
