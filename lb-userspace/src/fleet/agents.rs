//! What the API server says for a survey: which agents there are, on which nodes, the CA of their certificates, and a token for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use super::AUDIENCE;

/// Objects in a page of a list.
const PAGE: u32 = 500;
/// How long the token works: the shortest that the API server grants.
const TOKEN_SECONDS: i64 = 600;
/// Key of the ConfigMap with the CA.
const CA_KEY: &str = "ca.crt";

/// Why the API server does not say it.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    #[error("the agents cannot be listed: {0}; it needs `list pods` in their namespace")]
    Pods(String),
    #[error("no pod in namespace {namespace} has the labels {labels}: give --namespace and --selector of the agents")]
    None { namespace: String, labels: String },
    #[error("no token of ServiceAccount {name}: {error}; it needs `create serviceaccounts/token` for it")]
    Token { name: String, error: String },
    #[error("the API server made no token of ServiceAccount {name}")]
    NoToken { name: String },
    #[error(
        "the CA of the agents cannot be read from ConfigMap {name}: {error}; it needs `get configmaps` for it, or give --ca-file"
    )]
    Ca { name: String, error: String },
    #[error("ConfigMap {name} has no key {CA_KEY}: give --ca-file")]
    NoCa { name: String },
}

/// Where each node's agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// The address of the pod, by the name of its node; `None`: it has none yet.
    pub addresses: BTreeMap<String, Option<IpAddr>>,
    /// Nodes without such a pod.
    pub without: BTreeSet<String>,
    /// Why nodes without an agent cannot be named; `None`: they are.
    pub problem: Option<String>,
}

/// Lists the agents' pods, and the nodes that have none. Who may not list nodes gets the agents alone.
pub async fn find(client: &Client, namespace: &str, labels: &str) -> Result<Agents, AgentsError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut agents = Agents::default();
    let mut parameters = ListParams::default().labels(labels).limit(PAGE);
    loop {
        let page = pods.list(&parameters).await.map_err(|error| AgentsError::Pods(said(&error)))?;
        for pod in page.items {
            let Some(node) = pod.spec.and_then(|spec| spec.node_name) else { continue };
            let status = pod.status.unwrap_or_default();
            let address = status.pod_ip.and_then(|address| address.parse().ok());
            let is_over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
            // A pod that ends stays beside the one that replaces it.
            let address = address.filter(|_| !is_over && pod.metadata.deletion_timestamp.is_none());
            let known = agents.addresses.entry(node).or_default();
            *known = known.take().or(address);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    if agents.addresses.is_empty() {
        return Err(AgentsError::None { namespace: namespace.to_owned(), labels: labels.to_owned() });
    }
    match nodes(client).await {
        Ok(nodes) => agents.without = nodes.into_iter().filter(|node| !agents.addresses.contains_key(node)).collect(),
        Err(error) => {
            agents.problem =
                Some(format!("nodes without an agent are not shown: {}; it needs `list nodes`", said(&error)));
        }
    }
    Ok(agents)
}

/// The API server's own sentence, where it has answered.
pub(super) fn said(error: &kube::Error) -> String {
    let status = if let kube::Error::Api(status) = error { status.message.as_str() } else { "" };
    if status.is_empty() { error.to_string() } else { status.to_owned() }
}

/// The names of all nodes, and nothing else of them.
async fn nodes(client: &Client) -> Result<Vec<String>, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let (mut names, mut parameters) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = nodes.list_metadata(&parameters).await?;
        names.extend(page.items.into_iter().filter_map(|node| node.metadata.name));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(names),
        }
    }
}

/// A token of the ServiceAccount that is good for the agents' listeners alone.
pub async fn token(client: &Client, namespace: &str, name: &str) -> Result<String, AgentsError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec {
        audiences: Some(vec![AUDIENCE.to_owned()]),
        expiration_seconds: Some(TOKEN_SECONDS),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let made = accounts.create_token_request(name, &PostParams::default(), &request).await;
    let made = made.map_err(|error| AgentsError::Token { name: name.to_owned(), error: said(&error) })?;
    made.status.and_then(|status| status.token).ok_or_else(|| AgentsError::NoToken { name: name.to_owned() })
}

/// The CA of the agents' certificates, in PEM.
pub async fn ca(client: &Client, namespace: &str, name: &str) -> Result<String, AgentsError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get(name).await.map_err(|error| AgentsError::Ca { name: name.to_owned(), error: said(&error) })?;
    let mut data = map.data.unwrap_or_default();
    data.remove(CA_KEY).ok_or_else(|| AgentsError::NoCa { name: name.to_owned() })
}
