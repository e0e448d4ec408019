//! Credentials that change while the source runs, against a real API server.

use anyhow::Result;
use lb_tests::cluster::ApiServer;
use lb_tests::cluster::objects::Objects;
use lb_userspace::source::SourceStatus;
use lb_userspace::source::kube::KubeSettings;

use super::watched_source::{Followed, direct, has};

#[tokio::test]
async fn a_rotated_ca_is_read_again_and_nothing_is_lost() -> Result<()> {
    let mut server = ApiServer::start().await?;
    Objects::new(&server.client().await?).create_service("before").await?;
    let mut source = Followed::start(direct(&server.kubeconfig())).await?;
    source.until("the lists", |snapshot| has(snapshot, "before")).await?;
    server.rotate_certificate().await?;
    Objects::new(&server.client().await?).create_service("after").await?;
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
    let mut source = Followed::start(named("wrong.example")).await?;
    let is_refused = |error: &String| error.contains("certificate") && error.contains("wrong.example");
    // The addresses are tried in turn, by each resource at its own times: the last error of all may be the closed port's.
    let refused = |status: &SourceStatus| {
        status.resources.values().any(|resource| resource.last_error.as_ref().is_some_and(is_refused))
    };
    source.status_until("another name", refused).await?;
    // kube-apiserver's own certificate has this name.
    let mut source = Followed::start(named("kubernetes.default.svc")).await?;
    source.until("the lists", |snapshot| has(snapshot, "kubernetes")).await?;
    Ok(())
}
