//! Credentials that change while the source runs, against a real API server.

use std::time::Duration;

use anyhow::Result;
use lb_source::kube::KubeSettings;
use lb_source::{ApiError, ResourceStatus, SourceStatus};
use lb_tests::cluster::objects::Objects;
use lb_tests::cluster::{ApiServer, ClientCa};

use super::watched_source::{WatchedSource, direct, has};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn a_rotated_ca_is_read_again_and_nothing_is_lost() -> Result<()> {
    let mut server = ApiServer::start().await?;
    Objects::new(&server.client().await?).create_service("before").await?;
    let mut source = WatchedSource::start(direct(&server.kubeconfig())).await?;
    source.until("the lists", |snapshot| has(snapshot, "before")).await?;
    server.rotate_certificate().await?;
    Objects::new(&server.client().await?).create_service("after").await?;
    source.until("the change", |snapshot| has(snapshot, "after")).await?;
    source.insist_since(1, "with what was there before", |snapshot| has(snapshot, "before"));
    Ok(())
}

/// The server stops believing the signer of the old one, while the watches are open.
#[tokio::test]
async fn a_rotated_client_certificate_is_read_again_and_nothing_is_lost() -> Result<()> {
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    objects.create_service("before").await?;
    let folder = tempfile::tempdir()?;
    let (key, certificate) = (folder.path().join("client.key"), folder.path().join("client.crt"));
    let [old, new] = [ClientCa::new("old")?, ClientCa::new("new")?];
    old.issue(&key, &certificate, DAY)?;
    server.believe(&old)?;
    let mut source = WatchedSource::start(direct(&server.kubeconfig_by(&key, &certificate)?)).await?;
    source.until("the lists", |snapshot| has(snapshot, "before")).await?;
    let is_denied = |status: &SourceStatus| {
        let failing = |name| status.resources.get(name).and_then(|resource: &ResourceStatus| resource.failing);
        ["services", "endpointslices"]
            .map(|name| failing(name).is_some_and(|failing| failing.error == ApiError::Unauthorized))
    };
    server.believe(&new)?;
    // Until then the watches go on: they are asked for once.
    let status = source.status_until("the old one is denied", |status| is_denied(status) == [true, true]).await?;
    assert!(status.last_error.is_some(), "{status:#?}");
    new.issue(&key, &certificate, DAY)?;
    let begin = tokio::time::Instant::now();
    let is_fresh = |status: &SourceStatus| {
        let proven =
            ["services", "endpointslices"].map(|name| status.last_proof.get(name).is_some_and(|at| *at > begin));
        status.last_error.is_none() && proven == [true, true]
    };
    source.status_until("both are proven by the new one", is_fresh).await?;
    objects.create_service("after").await?;
    source.until("the change", |snapshot| has(snapshot, "after")).await?;
    source.insist_since(1, "with what was there before", |snapshot| has(snapshot, "before"));
    Ok(())
}

#[tokio::test]
async fn the_next_address_and_another_server_name_lead_to_the_api() -> Result<()> {
    let server = ApiServer::start().await?;
    let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let api_servers = vec![format!("https://{closed}"), format!("https://{}", server.address())];
    let named = |name: &str| KubeSettings {
        api_servers: api_servers.clone(),
        tls_server_name: Some(name.to_owned()),
        ..direct(&server.kubeconfig())
    };
    let mut source = WatchedSource::start(named("wrong.example")).await?;
    let is_refused = |error: &String| error.contains("certificate") && error.contains("wrong.example");
    // The addresses are tried in turn, by each resource at its own times: the last error of all may be the closed port's.
    let refused = |status: &SourceStatus| {
        status.resources.values().any(|resource| resource.last_error.as_ref().is_some_and(is_refused))
    };
    source.status_until("another name", refused).await?;
    // kube-apiserver's own certificate has this name.
    let mut source = WatchedSource::start(named("kubernetes.default.svc")).await?;
    source.until("the lists", |snapshot| has(snapshot, "kubernetes")).await?;
    Ok(())
}
