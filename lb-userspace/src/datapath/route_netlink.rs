//! Requests to rtnetlink from code that is not async, and the MTU of each link.

use std::{collections::BTreeMap, future::Future};

use futures::TryStreamExt as _;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};

use super::DatapathError;

/// Runs netlink requests from code that may or may not be async, in a thread of this network namespace.
pub(super) fn netlink_thread<T, F>(requests: impl FnOnce(rtnetlink::Handle) -> F + Send) -> Result<T, DatapathError>
where
    T: Send,
    F: Future<Output = Result<T, DatapathError>>,
{
    let failed = || DatapathError::kernel("open a netlink socket");
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().map_err(failed())?;
            let connection = tokio::spawn(connection);
            let result = requests(handle).await;
            connection.abort();
            result
        })
    };
    let joined = std::thread::scope(|scope| scope.spawn(run).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The MTU in bytes of each link of this network namespace, by name. Empty if the kernel does not list the links.
pub fn link_mtus() -> BTreeMap<String, u32> {
    let listed: Result<Vec<LinkMessage>, _> = netlink_thread(|handle| async move {
        let failed = DatapathError::netlink("list the interfaces");
        handle.link().get().execute().try_collect().await.map_err(failed)
    });
    listed.unwrap_or_default().iter().filter_map(name_and_mtu).collect()
}

fn name_and_mtu(link: &LinkMessage) -> Option<(String, u32)> {
    let name =
        link.attributes.iter().find_map(|it| if let LinkAttribute::IfName(name) = it { Some(name) } else { None })?;
    let mtu = link.attributes.iter().find_map(|it| if let LinkAttribute::Mtu(mtu) = it { Some(*mtu) } else { None })?;
    Some((name.clone(), mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_large_packets() {
        assert!(link_mtus().get("lo").is_some_and(|mtu| *mtu >= 1_280));
    }
}
