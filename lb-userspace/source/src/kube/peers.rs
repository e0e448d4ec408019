//! The other nodes, followed only while somebody asks for them: in a large cluster each node's reports are many, and go to every agent.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use tokio::sync::watch;

use super::{
    calls::WatcherOutput,
    connect::ApiClients,
    held::Message,
    reader::{self, Selection, WentBack},
    watcher::WatchSettings,
};
use lb_objects::lean;

/// Updates of all nodes but `own`, while `wanted`.
pub fn read(
    clients: Arc<ApiClients>,
    went_back: WentBack,
    own: Option<&str>,
    settings: WatchSettings,
    wanted: watch::Receiver<bool>,
) -> impl Stream<Item = Message> + Send + 'static {
    let selection = Selection { labels: None, fields: own.map(|name| format!("metadata.name!={name}")) };
    // A list of all nodes is large, and goes to every agent: it is not fetched once more to compare.
    let settings = WatchSettings { compare_interval: None, ..settings };
    let follow = move || reader::read(Arc::clone(&clients), went_back.clone(), selection.clone(), settings).boxed();
    let peers = Peers { wanted, following: None };
    stream::unfold((peers, follow), |(mut peers, follow)| async move {
        let message = peers.updates(&follow).await?;
        Some((message, (peers, follow)))
    })
}

struct Peers {
    wanted: watch::Receiver<bool>,
    following: Option<BoxStream<'static, WatcherOutput<lean::Node>>>,
}

impl Peers {
    /// `None`: nobody will ask any more.
    async fn updates(
        &mut self,
        follow: &impl Fn() -> BoxStream<'static, WatcherOutput<lean::Node>>,
    ) -> Option<Message> {
        loop {
            let is_wanted = *self.wanted.borrow_and_update();
            if !is_wanted && self.following.take().is_some() {
                return Some(Message::NoPeers);
            }
            if !is_wanted {
                self.wanted.changed().await.ok()?;
                continue;
            }
            let following = self.following.get_or_insert_with(follow);
            tokio::select! {
                updates = following.next() => return updates.map(|updates| Message::Peer(Box::new(updates))),
                changed = self.wanted.changed() => changed.ok()?,
            }
        }
    }
}
