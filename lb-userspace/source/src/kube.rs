//! The source `kube`: Services, `EndpointSlices`, `ServiceCIDRs`, the own Node and, where they matter, the others of a Kubernetes API, by
//! watches that are proven to be alive.

mod ask;
mod bounds;
mod calls;
mod connect;
mod counted;
mod failure;
mod held;
mod item;
mod own_node;
mod peers;
mod reader;
mod reason;
mod settings;
mod split;
mod version;
mod watcher;

use std::{pin::pin, sync::Arc};

use futures::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use self::settings::KubeSettings;
use self::{
    connect::ApiClients,
    held::{Held, Message},
    own_node::OwnNode,
    reader::{Selection, read},
    watcher::WatchSettings,
};
use super::{Source, SourceError, SourceStatus, api_requests::ApiRequests};
use lb_objects::lean::{HEADLESS_LABEL, PROXY_NAME_LABEL};

/// How many updates at most go into one snapshot.
const MESSAGES_MAX: usize = 4096;
/// The own Node and the service CIDRs are probed that many times as rarely: nothing that is forwarded waits for them.
const PATIENCE: u32 = 5;

/// Follows the API until `stop` is cancelled. An API that cannot be reached is no error here but a status: it is tried again.
pub async fn spawn(settings: KubeSettings, stop: CancellationToken) -> Result<Source, SourceError> {
    let clients = ApiClients::find(&settings).await?;
    let (want_peers, wanted) = watch::channel(settings.is_direct);
    let messages = messages(&clients, &settings, wanted);
    let own_node = OwnNode::new(settings.node_name, settings.known_node, settings.node_wait);
    let source = follow(clients.origin(), messages, Held::new(want_peers, settings.allowed, own_node), stop);
    Ok(Source { api: Some(clients.client()), requests: clients.requests().clone(), ..source })
}

/// Updates of all resources; of the other nodes while they are wanted.
fn messages(
    clients: &Arc<ApiClients>,
    settings: &KubeSettings,
    wanted: watch::Receiver<bool>,
) -> impl Stream<Item = Message> + Send + 'static {
    // The API server leaves out what no proxy or another one serves, as for kube-proxy. A Service with the headless label may have a
    // cluster IP; the endpoint slice controller labels the slices by `clusterIP` alone.
    let (of_services, of_slices) = match &settings.proxy_name {
        None => (format!("!{PROXY_NAME_LABEL}"), format!("!{HEADLESS_LABEL},!{PROXY_NAME_LABEL}")),
        // A writer of slices need not copy the Service's label.
        Some(name) => (format!("{PROXY_NAME_LABEL}={name}"), format!("!{HEADLESS_LABEL}")),
    };
    let labelled = |labels| Selection { labels: Some(labels), fields: None };
    let follow = WatchSettings {
        patience: 1,
        silence: settings.silence,
        compare_interval: settings.compare_interval,
        expected_objects: settings.expected_services,
        may_be_unknown: false,
    };
    // How many slices there were is not in the tables; some, if there were services.
    let follow_slices = WatchSettings { expected_objects: settings.expected_services.min(1), ..follow };
    let went_back = watch::Sender::new(0);
    let services = read(Arc::clone(clients), went_back.clone(), labelled(of_services), follow);
    let slices = read(Arc::clone(clients), went_back.clone(), labelled(of_slices), follow_slices);
    // Tables that hold services hold other nodes, too, unless this is the only one: a list of none is confirmed.
    let peers =
        peers::read(Arc::clone(clients), went_back.clone(), settings.node_name.as_deref(), follow_slices, wanted);
    let patient = WatchSettings { patience: PATIENCE, expected_objects: 0, ..follow };
    // Since Kubernetes 1.33.
    let follow_cidrs = WatchSettings { may_be_unknown: true, ..patient };
    let cidrs = read(Arc::clone(clients), went_back.clone(), Selection::default(), follow_cidrs);
    let node = settings.node_name.as_ref().map(|name| {
        let selection = Selection { labels: None, fields: Some(format!("metadata.name={name}")) };
        read(Arc::clone(clients), went_back, selection, patient)
    });
    let node = node.map_or_else(|| stream::pending().boxed(), StreamExt::boxed);
    futures::stream::select(
        futures::stream::select(
            services.map(|updates| Message::Service(Box::new(updates))),
            slices.map(|updates| Message::Slice(Box::new(updates))),
        ),
        futures::stream::select(
            futures::stream::select(node.map(|updates| Message::Node(Box::new(updates))), peers),
            cidrs.map(|updates| Message::ServiceCidr(Box::new(updates))),
        ),
    )
}

/// Turns updates of all resources into snapshots and a status, until `stop`.
fn follow(
    origin: String,
    messages: impl Stream<Item = Message> + Send + 'static,
    mut held: Held,
    stop: CancellationToken,
) -> Source {
    let (snapshots_to, snapshots) = watch::channel(None);
    let (status_to, status) = watch::channel(SourceStatus { kind: "kube", origin, ..SourceStatus::default() });
    let task = tokio::spawn(async move {
        let mut chunks = pin!(messages.ready_chunks(MESSAGES_MAX));
        loop {
            let due = held.due();
            tokio::select! {
                () = stop.cancelled() => return,
                chunk = chunks.next() => match chunk {
                    Some(chunk) => chunk.into_iter().for_each(|message| held.take(message)),
                    None => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            held.publish(Instant::now(), &snapshots_to, &status_to);
        }
    });
    Source { snapshots, status, task, api: None, requests: ApiRequests::default() }
}

#[cfg(test)]
#[path = "kube_tests.rs"]
mod tests;
