//! Metrics, alerts and Events. What health and readiness say as things go wrong is in `freshness`. Needs root, BPF, kube-apiserver, promtool.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use lb_model::Refusal;
use lb_source::announce::{self, ObjectEvent};
use lb_tests::agent::{Agent, SOON};
use lb_tests::cluster::{self, ApiServer, Hosted, SETTLE_LIMIT};
use lb_tests::peers::eventually;
use lb_tests::topology::NodeOptions;
use lb_userspace::agent::clock;
use tokio::sync::watch;

use lb_tests::fixture::health_check_port::manifest;
use lb_tests::fixture::{Fixture, Pods};

const CHECK_PORT: u16 = 32_100;

#[test]
fn promtool_finds_nothing_to_complain_about() -> Result<()> {
    let fixture = Fixture::new("health-metrics", Pods::Routed, 1, NodeOptions::default());
    let node = &fixture.node;
    let mut agent = Agent::prepare(node, &["--audit-interval=1s"])?;
    agent.write_text(&manifest(node, CHECK_PORT, &[("10.1.0.2", &node.node_name(), true)], false))?;
    agent.restart()?;
    eventually("an audit", SOON, || agent.metric("ballast_audits_total", "").filter(|runs| *runs >= 1.0));
    eventually("how full the maps are", SOON, || agent.metric("ballast_map_entries", "map=\"services4\""));
    let text = agent.metrics()?;
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        "kubeproxy_network_programming_duration_seconds_count",
        "ballast_map_capacity",
        "ballast_service_backends",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
    }
    assert!(text.contains("ballast_map_entries{map=\"flows4\"}"), "{text}");
    is_well_formed(&text)
}

/// The panels of kubernetes-mixin's dashboard of kube-proxy select these series.
#[test]
fn dashboards_of_kube_proxy_find_their_series() -> Result<()> {
    let fixture = Fixture::new("health-mixin", Pods::Routed, 1, NodeOptions::default());
    let host = fixture.topology.outside("api", &fixture.node)?;
    let cluster = Hosted::start(&host)?;
    let mut agent = cluster.agent(&fixture.node, &["--watch-silence=2s"])?;
    agent.restart()?;
    cluster.create_service("web")?;
    cluster.put_pods("web", &[&fixture.backends[0]])?;
    let active = || agent.metric("ballast_backends", "state=\"active\"").filter(|backends| *backends >= 1.0);
    eventually("the backend is in the tables", SETTLE_LIMIT, active);
    let text = agent.metrics()?;
    let value = |series: &str| -> Option<f64> {
        let (name, label) = series.split_once('{').unwrap_or((series, ""));
        agent.metric(name, label.trim_end_matches('}'))
    };
    for series in [
        "rest_client_requests_total{code=\"200\"}",
        "rest_client_requests_total{method=\"GET\"}",
        "rest_client_request_duration_seconds_bucket{verb=\"GET\"}",
        "rest_client_request_duration_seconds_count{verb=\"GET\"}",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
        "kubeproxy_network_programming_duration_seconds_bucket",
        "process_cpu_seconds_total",
    ] {
        assert!(value(series).is_some(), "{series} is not in\n{text}");
    }
    let host = text.lines().find_map(|line| line.strip_prefix("rest_client_requests_total{")?.split("host=\"").nth(1));
    let host = host.and_then(|rest| rest.split('"').next()).context("a host")?;
    assert!(host.parse::<std::net::SocketAddr>().is_ok(), "{host} is no address with a port");
    let resident = value("process_resident_memory_bytes").context("the agent's memory")?;
    assert!((1e6..1e10).contains(&resident), "{resident}");
    is_well_formed(&text)
}

#[test]
fn the_alerts_are_valid_and_fire_when_they_should() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring");
    for (command, file) in [("check", "rules.yaml"), ("test", "rules-test.yaml")] {
        let path = folder.join(file);
        let found = promtool(&[command, "rules", path.to_str().context("UTF-8")?], None)?;
        let said = [found.stdout, found.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(found.status.success(), "{file}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn every_node_says_it_and_there_is_one_event() -> Result<()> {
    let server = ApiServer::start().await?;
    let client = server.client().await?;
    let refusal = Refusal::new("Service default/web", "clusterIP 127.0.0.1 is a loopback address", "give another one");
    let notices: BTreeSet<ObjectEvent> = ObjectEvent::of_refusal(&refusal).into_iter().collect();
    let posted = async |node: &str| {
        let (to, notices_of) = watch::channel(BTreeSet::new());
        let task =
            tokio::spawn(announce::run(client.clone(), node.to_owned(), notices_of, Duration::ZERO, clock::wall));
        to.send_replace(notices.clone());
        (to, task)
    };
    let (_first, _task) = posted("n1").await;
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    let ours = async || -> Result<Vec<Event>> {
        let events = api.list(&ListParams::default()).await?.items;
        Ok(events.into_iter().filter(|event| event.reporting_controller.as_deref() == Some("ballast")).collect())
    };
    let mut events = Vec::new();
    for _ in 0..600 {
        events = ours().await?;
        if !events.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let event = events.first().context("an Event")?;
    let regarding = event.regarding.as_ref().context("an object")?;
    assert_eq!((regarding.kind.as_deref(), regarding.name.as_deref()), (Some("Service"), Some("web")));
    assert_eq!((event.reason.as_deref(), event.reporting_instance.as_deref()), (Some("Refused"), Some("n1")));
    assert!(event.note.as_ref().is_some_and(|note| note.contains("loopback") && note.contains("give another one")));

    let (_second, _task) = posted("n2").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ours().await?.len(), 1);
    Ok(())
}

/// Nothing is wrong with names, types and labels of a page of metrics.
fn is_well_formed(text: &str) -> Result<()> {
    let found = promtool(&["check", "metrics"], Some(text))?;
    let said = format!("{}{}", String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    assert!(found.status.success() && said.trim().is_empty(), "{said}\n{text}");
    Ok(())
}

fn promtool(arguments: &[&str], input: Option<&str>) -> Result<Output> {
    let mut command = Command::new(cluster::binary("promtool")?);
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("piped")?;
    stdin.write_all(input.unwrap_or_default().as_bytes())?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}
