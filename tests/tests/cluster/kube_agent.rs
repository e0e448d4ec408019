//! The agent against a real API server: objects are made, scaled and deleted, and traffic of a pod follows.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_seed::short_or_long;
use lb_tests::agent::Agent;
use lb_tests::cluster::{Hosted, SETTLE_LIMIT};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{Families, Pod};

use lb_tests::fixture::Fixture;

/// Connections that must show every backend: with two of them, all the same with a chance of 2⁻⁴⁰.
const MANY: usize = 40;

/// The node, and an API server on another host, which the agent reaches by the first of the families.
fn fixture(subject: &str, families: Families) -> Result<(Fixture, Hosted)> {
    let fixture = Fixture::of(families, subject, 2);
    let host = fixture.topology.outside("api", &fixture.node)?;
    let cluster = Hosted::start(&host)?;
    Ok((fixture, cluster))
}

/// Names of the servers that a new TCP connection and a new UDP flow to the service get to.
fn ask(client: &Pod, cluster_ip: IpAddr) -> std::io::Result<[String; 2]> {
    let tcp = Stream::connect(client.netns(), SocketAddr::new(cluster_ip, 80))?.ask("hello")?;
    let udp = Datagrams::connected(client.netns(), 0, SocketAddr::new(cluster_ip, 53))?.ask("hello")?;
    Ok([tcp.server, udp.server])
}

/// Waits until both families of a service are answered by just these servers.
fn answered_by(client: &Pod, cluster_ips: &[IpAddr], servers: &[&str]) {
    let expected: BTreeSet<String> = servers.iter().map(|&name| name.to_owned()).collect();
    for &cluster_ip in cluster_ips {
        eventually(&format!("{cluster_ip} is answered by {servers:?}"), SETTLE_LIMIT, || {
            let mut seen = BTreeSet::new();
            for _ in 0..MANY {
                seen.extend(ask(client, cluster_ip).ok()?);
            }
            (seen == expected).then_some(())
        });
    }
}

/// Waits until both families of a service refuse at once.
fn refused(client: &Pod, cluster_ips: &[IpAddr]) {
    for &cluster_ip in cluster_ips {
        eventually(&format!("{cluster_ip} refuses"), SETTLE_LIMIT, || {
            let at = SocketAddr::new(cluster_ip, 80);
            let error = Stream::connect_from(client.netns(), 0, at, Duration::from_secs(1)).err()?;
            (error.kind() == ErrorKind::ConnectionRefused).then_some(())
        });
    }
}

#[test]
fn traffic_follows_what_is_made_scaled_and_deleted() -> Result<()> {
    for (families, api) in [(Families::Both, "10.96.0.1:443"), (Families::Ipv6, "[fd00:96::1]:443")] {
        let (fixture, cluster) = fixture("kube", families)?;
        let mut agent = cluster.agent(&fixture.node, &[])?;
        agent.restart()?;
        let (client, [one, two]) = (&fixture.client, [&fixture.backends[0], &fixture.backends[1]]);

        // The API server's own service, which it makes itself.
        let api: SocketAddr = api.parse()?;
        eventually("the API answers at its cluster IP", SETTLE_LIMIT, || Stream::connect(client.netns(), api).ok());

        let cluster_ips = cluster.create_service("web")?;
        assert_eq!(cluster_ips.len(), families.names().len());
        refused(client, &cluster_ips);
        cluster.put_pods("web", &[one])?;
        answered_by(client, &cluster_ips, &["b0"]);
        cluster.put_pods("web", &[one, two])?;
        answered_by(client, &cluster_ips, &["b0", "b1"]);
        cluster.put_pods("web", &[two])?;
        answered_by(client, &cluster_ips, &["b1"]);
        cluster.put_pods("web", &[])?;
        refused(client, &cluster_ips);

        cluster.put_pods("web", &[one])?;
        answered_by(client, &cluster_ips, &["b0"]);
        cluster.delete_service("web")?;
        eventually("default/web is gone", SETTLE_LIMIT, || (!services(&agent).ok()?.contains("web")).then_some(()));
        assert!(ask(client, cluster_ips[0]).is_err(), "a deleted service answered");
        assert!(services(&agent)?.contains("kubernetes"), "only what was deleted is gone");
    }
    Ok(())
}

#[test]
fn a_break_to_the_api_is_seen_in_readyz_alone_and_heals_without_any_change() -> Result<()> {
    let (fixture, cluster) = fixture("kube-cut", Families::Both)?;
    let proxy = cluster.proxy()?;
    let mut agent = cluster.agent(&fixture.node, &[&format!("--api-server=https://{}", proxy.address())])?;
    agent.restart()?;
    let (client, [one, two]) = (&fixture.client, [&fixture.backends[0], &fixture.backends[1]]);
    let cluster_ips = cluster.create_service("web")?;
    cluster.put_pods("web", &[one])?;
    answered_by(client, &cluster_ips, &["b0"]);
    let mut held = Stream::connect(client.netns(), SocketAddr::new(cluster_ips[0], 80))?;
    held.ask("before").context("before")?;
    let before = settled_tables(&agent);
    // Asked all along: a load balancer keeps this node, and traffic goes on.
    let mut serves = || {
        assert_eq!(agent.health("/healthz").expect("an answer").0, 200);
        assert_eq!(held.ask("meanwhile").expect("an established connection").server, "b0");
        assert_eq!(ask(client, cluster_ips[1]).expect("new connections"), ["b0", "b0"]);
    };

    proxy.cut();
    eventually("the break shows", SETTLE_LIMIT, || {
        serves();
        matches!(agent.health("/readyz"), Ok((503, _))).then_some(())
    });
    // Long: several retries.
    let (cut, length) = (Instant::now(), Duration::from_secs(short_or_long(3, 10)));
    while cut.elapsed() < length {
        serves();
        let (status, body) = agent.health("/readyz")?;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("the source is stale"), "{body}");
        std::thread::sleep(Duration::from_millis(100));
    }
    proxy.mend();
    // Nobody changes anything in the cluster.
    eventually("ready again", SETTLE_LIMIT, || {
        serves();
        matches!(agent.health("/readyz"), Ok((200, _))).then_some(())
    });
    assert_eq!(tables(&agent)?, before);
    let log = agent.log();
    for resource in ["services", "endpointslices"] {
        let ours = log.lines().filter(|line| line.ends_with(&format!("resource=\"{resource}\"")));
        // Without the time.
        let told: Vec<&str> = ours.filter_map(|line| line.split_once(' ')).map(|(_, text)| text).collect();
        assert!(told.len() >= 2 && told.windows(2).all(|pair| pair[0] != pair[1]), "changes, not retries:\n{log}");
        assert!(told.last().is_some_and(|text| text.contains("watch recovered; cached objects verified")), "{log}");
    }

    cluster.put_pods("web", &[one, two])?;
    answered_by(client, &cluster_ips, &["b0", "b1"]);
    assert_eq!(held.ask("after").context("with the API back")?.server, "b0", "an established connection goes on");
    Ok(())
}

#[test]
fn an_agent_without_its_api_programs_nothing_and_keeps_what_is_there() -> Result<()> {
    let (fixture, mut cluster) = fixture("kube-none", Families::Both)?;
    let client = &fixture.client;
    let cluster_ips = cluster.create_service("web")?;
    cluster.put_pods("web", &[&fixture.backends[0]])?;

    cluster.stop();
    let mut agent = cluster.agent(&fixture.node, &[])?;
    agent.launch()?;
    eventually("the agent is up, and not ready", SETTLE_LIMIT, || {
        matches!(agent.health("/readyz"), Ok((503, _))).then_some(())
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(services(&agent)?.is_empty(), "programmed without having seen the API");
    assert!(agent.alive(), "{}", agent.log());

    cluster.restart()?;
    answered_by(client, &cluster_ips, &["b0"]);

    // And the next agent, which finds tables but no API, leaves them as they are.
    let before = settled_tables(&agent);
    cluster.stop();
    agent.kill();
    agent.launch()?;
    std::thread::sleep(Duration::from_secs(3));
    assert!(agent.alive(), "{}", agent.log());
    assert_eq!(tables(&agent)?, before);
    answered_by(client, &cluster_ips, &["b0"]);
    Ok(())
}

/// The kubelet's environment of pods names the API server by the cluster IP of its Service, and kube-proxy is gone.
#[test]
fn an_api_server_behind_a_cluster_ip_is_named_until_tables_serve_it() -> Result<()> {
    let (fixture, cluster) = fixture("kube-cluster-ip", Families::Both)?;
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let by_cluster_ip = ["--source=kube", &kubeconfig, "--api-server=https://10.96.0.1"];
    let agent = Agent::prepare(&fixture.node, &by_cluster_ip)?;
    let mut agent = agent.with_variable("KUBERNETES_PORT", "tcp://10.96.0.1:443");
    agent.launch()?;
    let said = |agent: &Agent, command: &str| agent.cli(&[command]);
    eventually("the agent names the address", SETTLE_LIMIT, || {
        let status = said(&agent, "status").ok()?;
        String::from_utf8_lossy(&status.stdout).contains("10.96.0.1 is a cluster IP").then_some(())
    });
    for command in ["status", "doctor"] {
        let shown = String::from_utf8(said(&agent, command)?.stdout)?;
        println!("{shown}");
        assert!(shown.contains("10.96.0.1 is a cluster IP") && shown.contains("set --api-server"), "{shown}");
    }
    assert_eq!(said(&agent, "doctor")?.status.code(), Some(1));
    assert!(agent.log().contains("set --api-server"), "{}", agent.log());

    // Tables of an agent that reached the API in another way.
    agent.restart_with(&fixture.node, &by_cluster_ip[..2])?;
    agent.restart_with(&fixture.node, &by_cluster_ip)?;
    let cluster_ips = cluster.create_service("web")?;
    cluster.put_pods("web", &[&fixture.backends[0]])?;
    answered_by(&fixture.client, &cluster_ips, &["b0"]);
    let status = agent.json(&["status"])?;
    assert!(status["source"]["apiAddressProblem"].is_null(), "{:#}", status["source"]);
    Ok(())
}

/// Names of the services in the tables.
fn services(agent: &Agent) -> Result<BTreeSet<String>> {
    let list = agent.json(&["get", "services", "-A"])?;
    let items = list["items"].as_array().context("no items")?;
    Ok(items.iter().filter_map(|item| item["name"].as_str()).map(str::to_owned).collect())
}

/// All services with all their backends, without the times that connections add to.
fn tables(agent: &Agent) -> Result<serde_json::Value> {
    let mut list = agent.json(&["get", "services", "-A"])?;
    for item in list["items"].as_array_mut().context("no items")? {
        item.as_object_mut().context("no object")?.remove("connectTime");
    }
    Ok(list)
}

/// The tables once nothing more comes by itself: the API server makes its own service, and its endpoints, when it likes.
fn settled_tables(agent: &Agent) -> serde_json::Value {
    eventually("the API server's own service is in the tables", SETTLE_LIMIT, || {
        let all = tables(agent).ok()?;
        let own = all["items"].as_array()?.iter().find(|item| item["name"] == "kubernetes")?;
        own["backends"].as_array().is_some_and(|backends| !backends.is_empty()).then_some(())?;
        Some(all)
    })
}
