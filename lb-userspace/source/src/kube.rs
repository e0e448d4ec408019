//! The source `kube`: Services, `EndpointSlices`, `ServiceCIDRs`, the own Node and, where they matter, the others of a Kubernetes API, by
//! watches that are proven to be alive.

mod ask;
mod bounds;
mod calls;
mod connect;
mod counted;
mod held;
mod item;
mod own_node;
mod peers;
mod reader;
mod split;
mod version;
mod watcher;

use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    connect::ApiClients,
    held::{Held, Message},
    own_node::OwnNode,
    reader::{Selection, read},
    watcher::WatchSettings,
};
use super::{Source, SourceError, SourceStatus, api_requests::ApiRequests};
use lb_model::{AllowedAnnotations, Node};
use lb_objects::lean::{HEADLESS_LABEL, PROXY_NAME_LABEL};

/// How many updates at most go into one snapshot.
const MESSAGES_MAX: usize = 4096;
/// The own Node and the service CIDRs are probed that many times as rarely: nothing that is forwarded waits for them.
const PATIENCE: u32 = 5;

/// Where the API is, who we are there, and how it is followed.
#[derive(Clone, Debug)]
pub struct KubeSettings {
    /// A kubeconfig file; without one, the credentials of the pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// URLs of the API, tried in turn, instead of the one in the kubeconfig or the pod's environment: Ballast serves the latter's
    /// address, so it must not depend on it.
    pub api_servers: Vec<String>,
    /// The name in the API servers' certificates, where it is not the one in their URLs.
    pub tls_server_name: Option<String>,
    /// Services with this value of the label `service.kubernetes.io/service-proxy-name` are asked for; `None`: those without it.
    pub proxy_name: Option<String>,
    /// The Node that we are; without it, the snapshots hold none.
    pub node_name: Option<String>,
    /// What an agent before this one knew of that Node: it holds until the API has the Node.
    pub known_node: Option<Arc<Node>>,
    /// How long the first snapshot waits for a Node that nothing is known of.
    pub node_wait: Duration,
    /// Services have direct server return unless they say otherwise: the other nodes matter.
    pub is_direct: bool,
    /// What annotations of Services may ask for.
    pub allowed: AllowedAnnotations,
    /// How long a watch may be silent before a probe, on average: each round is up to a quarter shorter or longer, so that not all
    /// nodes ask at once.
    pub silence: Duration,
    /// Mean time from one comparison with a complete list to the next, a fifth less or more; the first is anywhere in it. `None`: never.
    pub compare_interval: Option<Duration>,
    /// How many services the tables hold already: an API that lists none, or suddenly few, is then not believed at once.
    pub expected_services: usize,
}

impl Default for KubeSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            api_servers: Vec::new(),
            tls_server_name: None,
            proxy_name: None,
            node_name: None,
            known_node: None,
            node_wait: Duration::ZERO,
            is_direct: false,
            allowed: AllowedAnnotations::default(),
            silence: bounds::SILENCE,
            compare_interval: Some(bounds::COMPARE_INTERVAL),
            expected_services: 0,
        }
    }
}

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

/// An error with its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        // Many errors already print their cause.
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = deeper.source();
    }
    reason
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
