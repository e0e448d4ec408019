//! The addresses of pods that a question names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::explain::pod::{PodName, names, replace};

/// How long the API server may take for one pod.
const LIMIT: Duration = Duration::from_secs(5);

/// The arguments with an address for each pod. `api` is called only if a pod is named.
pub(super) async fn with_addresses(
    arguments: &[String],
    api: impl AsyncFnOnce() -> anyhow::Result<Client>,
) -> anyhow::Result<Vec<String>> {
    let pods = names(arguments).map_err(anyhow::Error::msg)?;
    if pods.is_empty() {
        return Ok(arguments.to_vec());
    }
    let api =
        api().await.context("names of pods are looked up at the Kubernetes API: give the pod's address instead")?;
    let mut found = BTreeMap::new();
    for pod in pods {
        let name = format!("pod {}/{}", pod.namespace, pod.name);
        let answer = timeout(LIMIT, addresses(&api, &pod)).await;
        let addresses = answer.with_context(|| format!("{name}: the API server does not answer within {LIMIT:?}"))?;
        found.insert(pod, addresses.context(name)?);
    }
    Ok(replace(arguments, &found)?)
}

async fn addresses(api: &Client, pod: &PodName) -> anyhow::Result<Vec<IpAddr>> {
    let found = Api::<Pod>::namespaced(api.clone(), &pod.namespace).get(&pod.name).await?;
    let status = found.status.unwrap_or_default();
    let is_over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let all = status.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).chain(status.pod_ip);
    let mut addresses: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).filter(|_| !is_over).collect();
    addresses.dedup();
    Ok(addresses)
}
