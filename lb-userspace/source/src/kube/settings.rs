//! What is followed, and how.

use std::{path::PathBuf, sync::Arc, time::Duration};

use lb_model::{AllowedAnnotations, Node};

use super::bounds;

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
