//! The source `kube` and the manifests of deploy/ against a real API server. Needs no root.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use kube::api::{DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use lb_model::{ObjectName, Snapshot};
use lb_source::kube::{KubeSettings, spawn};
use lb_source::{Source, SourceStatus};
use lb_tests::cluster::manifests::{apply, read_base};
use lb_tests::cluster::objects::{Endpoint, NAMESPACE, Objects};
use lb_tests::cluster::{ApiServer, SETTLE_LIMIT};
use tokio_util::sync::CancellationToken;

/// The user that the DaemonSet's pods are.
const AGENT_USER: &str = "system:serviceaccount:kube-system:ballast";

async fn source(kubeconfig: &Path) -> Result<Source> {
    let settings = KubeSettings { kubeconfig: Some(kubeconfig.to_owned()), ..KubeSettings::default() };
    Ok(spawn(settings, CancellationToken::new()).await?)
}

/// Waits for a snapshot that is as asked for.
async fn snapshot(source: &mut Source, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> Result<Arc<Snapshot>> {
    let found = source.snapshots.wait_for(|snapshot| snapshot.as_deref().is_some_and(&is_so));
    let found = tokio::time::timeout(SETTLE_LIMIT, found).await;
    let found = found.with_context(|| format!("no snapshot with {what}"))??;
    Ok(Arc::clone(found.as_ref().context("waited for one")?))
}

async fn status(source: &mut Source, what: &str, is_so: impl Fn(&SourceStatus) -> bool) -> Result<SourceStatus> {
    let found = tokio::time::timeout(SETTLE_LIMIT, source.status.wait_for(|status| is_so(status))).await;
    Ok(found.with_context(|| format!("the source's status never was: {what}"))??.clone())
}

/// Addresses of the ready endpoints of a service, from all its slices.
fn ready(snapshot: &Snapshot, service: &str) -> Vec<IpAddr> {
    let of_service = snapshot.slices.values().filter(|slice| &*slice.service == service);
    let endpoints = of_service.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready);
    let mut addresses: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
    addresses.sort();
    addresses
}

fn has(snapshot: &Snapshot, service: &str) -> bool {
    snapshot.services.contains_key(&ObjectName::new(NAMESPACE, service))
}

/// The service CIDRs; none also while they are not known.
fn service_cidrs(snapshot: &Snapshot) -> Vec<String> {
    snapshot.service_cidrs.iter().flat_map(|all| all.iter()).map(ToString::to_string).collect()
}

fn endpoints(addresses: &[&str]) -> Vec<Endpoint> {
    addresses.iter().map(|address| Endpoint::ready(address.parse().expect("an address in a test"))).collect()
}

fn addresses(endpoints: &[Endpoint]) -> Vec<IpAddr> {
    endpoints.iter().map(|endpoint| endpoint.address).collect()
}

#[tokio::test]
async fn the_source_follows_what_is_made_scaled_and_deleted() -> Result<()> {
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    let mut source = source(&server.kubeconfig()).await?;
    // The cluster's own service is there from the start, and is no reason to wait for slices of it.
    snapshot(&mut source, "default/kubernetes", |snapshot| has(snapshot, "kubernetes")).await?;

    let cluster_ips = objects.create_service("web").await?;
    let made = snapshot(&mut source, "default/web", |snapshot| has(snapshot, "web")).await?;
    let web = &made.services[&ObjectName::new(NAMESPACE, "web")];
    assert_eq!(web.cluster_ips, cluster_ips);
    assert_eq!(cluster_ips.len(), 2, "one of each family");
    let ports: Vec<(&str, u16)> = web.ports.iter().map(|port| (port.name.as_str(), port.port)).collect();
    assert_eq!(ports, [("tcp", 80), ("udp", 53)]);

    let two = endpoints(&["10.244.1.1", "10.244.1.2", "fd00:244::1"]);
    objects.put_endpoints("web", &two).await?;
    let wanted = addresses(&two);
    snapshot(&mut source, "all endpoints", |snapshot| ready(snapshot, "web") == wanted).await?;

    let mut fewer = two.clone();
    fewer[0] = Endpoint::unready(fewer[0].address);
    objects.put_endpoints("web", &fewer).await?;
    snapshot(&mut source, "one endpoint less", |snapshot| ready(snapshot, "web") == wanted[1..]).await?;

    objects.delete_slice("web-ipv4").await?;
    snapshot(&mut source, "IPv6 alone", |snapshot| ready(snapshot, "web") == wanted[2..]).await?;

    objects.delete_service("web").await?;
    let last = snapshot(&mut source, "no default/web", |snapshot| !has(snapshot, "web")).await?;
    assert!(has(&last, "kubernetes"), "only what was deleted is gone");
    assert_eq!(source.status.borrow().last_error, None);
    Ok(())
}

#[tokio::test]
async fn service_cidrs_are_those_of_the_api_as_they_are_made_and_deleted() -> Result<()> {
    const MORE: &str = "10.231.0.0/24";
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    let mut source = source(&server.kubeconfig()).await?;
    let own = snapshot(&mut source, "the API server's own", |snapshot| !service_cidrs(snapshot).is_empty()).await?;
    let cluster_ips = objects.create_service("web").await?;
    let networks = own.service_cidrs.as_ref().context("they are known")?;
    for address in &cluster_ips {
        assert!(networks.iter().any(|network| network.contains(address)), "{address} is in none of {networks:?}");
    }
    objects.create_service_cidr("more", MORE).await?;
    snapshot(&mut source, "one more", |snapshot| service_cidrs(snapshot).iter().any(|cidr| cidr == MORE)).await?;
    objects.delete_service_cidr("more").await?;
    let before = service_cidrs(&own);
    snapshot(&mut source, "the own one alone", |snapshot| service_cidrs(snapshot) == before).await?;
    assert_eq!(source.status.borrow().last_error, None);
    Ok(())
}

/// The rights of deploy/, first without the endpoint slices, then complete.
#[tokio::test]
async fn nothing_is_told_before_both_lists_and_the_deployed_rights_suffice() -> Result<()> {
    let server = ApiServer::start().await?;
    let client = server.client().await?;
    let rights: Vec<DynamicObject> =
        read_base(&base())?.into_iter().filter(|object| kind(object).contains("Role")).collect();
    for object in &rights {
        let mut partial = object.clone();
        if let Some(rules) = partial.data.get_mut("rules").and_then(|rules| rules.as_array_mut()) {
            rules.retain(|rule| rule["apiGroups"] != serde_json::json!(["discovery.k8s.io"]));
        }
        apply(&client, &partial, false).await?;
    }
    let user = server.kubeconfig_as(AGENT_USER)?;
    let mut source = source(&user).await?;
    let proven = status(&mut source, "services listed, slices refused", |status| {
        status.last_proof.contains_key("services") && status.last_error.is_some()
    });
    let proven = proven.await?;
    assert!(!proven.synced, "{proven:?}");
    assert!(proven.last_error.as_deref().unwrap_or_default().contains("endpointslices"), "{:?}", proven.last_error);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*source.snapshots.borrow(), None, "half of the truth is none");

    for object in &rights {
        apply(&client, object, false).await?;
    }
    snapshot(&mut source, "both lists", |snapshot| has(snapshot, "kubernetes")).await?;
    snapshot(&mut source, "service CIDRs", |snapshot| !service_cidrs(snapshot).is_empty()).await?;

    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(user)?, &KubeConfigOptions::default()).await?;
    let agent = Client::try_from(config)?;
    let refused = |error: Option<kube::Error>| matches!(error, Some(kube::Error::Api(status)) if status.code == 403);
    let secrets = Api::<Secret>::all(agent.clone()).list(&ListParams::default()).await;
    assert!(refused(secrets.err()), "more than the least: secrets");
    let nodes = Api::<Node>::all(agent.clone());
    nodes.list(&ListParams::default()).await.context("less than is needed: its own node")?;
    let made = nodes.create(&PostParams::default(), &Node::default()).await;
    assert!(refused(made.err()), "more than the least: nodes, which the agent only reads");
    let event = Event { metadata: ObjectMeta { name: Some("e".into()), ..ObjectMeta::default() }, ..Event::default() };
    let event = Api::<Event>::namespaced(agent, NAMESPACE).create(&PostParams::default(), &event).await;
    assert!(refused(event.err()), "more than the least: events, of the old kind, which the agent does not make");
    Ok(())
}

#[tokio::test]
async fn the_api_server_accepts_the_manifests() -> Result<()> {
    let server = ApiServer::start().await?;
    let client = server.client().await?;
    let objects = read_base(&base())?;
    let mut kinds: Vec<&str> = objects.iter().map(kind).collect();
    for object in &objects {
        apply(&client, object, true).await?;
    }
    kinds.sort_unstable();
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "ServiceAccount"]);

    let mut broken = objects.into_iter().find(|object| kind(object) == "DaemonSet").context("a DaemonSet")?;
    broken.data["spec"]["template"]["spec"]["hostNetwrok"] = true.into();
    let refused = apply(&client, &broken, true).await.expect_err("a misspelt field passed: the dry run shows nothing");
    assert!(format!("{refused:#}").contains("hostNetwrok"), "{refused:#}");
    Ok(())
}

fn base() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kustomize/base")
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default()
}
