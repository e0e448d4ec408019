//! `ballast plan` says what a change would do, and does nothing; then the change comes, and does just that.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::Value;

/// A file with this change.
fn change(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Exit code and JSON.
fn plan(agent: &Agent, file: &Path) -> (i32, Value) {
    let output = agent.cli(&["plan", "-f", file.to_str().unwrap(), "-o", "json"]).unwrap();
    let code = output.status.code().expect("an exit code");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (code, serde_json::from_slice(&output.stdout).unwrap())
}

/// Exit code and what is said on standard error.
fn error(agent: &Agent, arguments: &[&str]) -> (Option<i32>, String) {
    let output = agent.cli(&[&["plan"], arguments].concat()).unwrap();
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Everything that the agent wrote, and what it said that it wrote.
fn written(agent: &Agent) -> (Value, Value, Value) {
    let tables = agent.json(&["status"]).unwrap()["agent"]["tables"].clone();
    assert!(tables["writes"].as_u64().is_some_and(|writes| writes > 0), "{tables:#}");
    (agent.json(&["get", "services"]).unwrap(), tables["writes"].clone(), tables["refusals"].clone())
}

/// What is said of each backend of a protocol, by its address: change, fate and connections.
fn backends(planned: &Value, protocol: &str) -> BTreeMap<String, (String, String, u64)> {
    let services = planned["services"].as_array().unwrap().iter().filter(|one| one["protocol"] == protocol);
    let all = services.flat_map(|service| service["backends"].as_array().unwrap());
    all.map(|one| {
        let text = |field: &str| one[field].as_str().unwrap().to_owned();
        (text("address"), (text("change"), text("fate"), one["connections"].as_u64().unwrap()))
    })
    .collect()
}

/// The address of a backend of the family.
fn backend(fixture: &Fixture, index: usize, like: SocketAddr) -> String {
    fixture.backends[index].addresses().like(like.ip()).to_string()
}

/// A connection that this backend answers.
fn connected(fixture: &Fixture, to: SocketAddr, name: &str) -> Stream {
    loop {
        let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
        if stream.ask("who").unwrap().server == name {
            return stream;
        }
        stream.reset().unwrap();
    }
}

/// A UDP flow that this backend answers.
fn flowing(fixture: &Fixture, to: SocketAddr, name: &str) -> Datagrams {
    loop {
        let socket = Datagrams::unconnected(fixture.client.netns(), 0, to).unwrap();
        if socket.ask_at(to, "who").unwrap().server == name {
            return socket;
        }
    }
}

#[test]
fn what_is_planned_is_what_the_change_then_does() {
    let fixture = Fixture::new("plan", Pods::Routed, 3, NodeOptions::default());
    let all = fixture.endpoints();
    let (before, after) = (fixture.web_of(all[..2].to_vec()), fixture.web_of(vec![all[0].clone(), all[2].clone()]));
    let agent = fixture.agent(&Manifest::of([before.clone()]), &["--drain-period=10m", "--drain-max=20m"]);
    let (tcp, udp) = (before.frontends(Protocol::Tcp), before.frontends(Protocol::Udp));
    let mut leaving: Vec<Stream> = tcp.iter().flat_map(|to| [(); 2].map(|()| connected(&fixture, *to, "b1"))).collect();
    let mut staying: Vec<Stream> = tcp.iter().map(|to| connected(&fixture, *to, "b0")).collect();
    let flows: Vec<(SocketAddr, Datagrams)> = udp.iter().map(|to| (*to, flowing(&fixture, *to, "b1"))).collect();

    let same = change(&Manifest::of([before]).yaml());
    assert_eq!(plan(&agent, same.path()).0, 0, "what is served changes nothing");
    // Only the slices: the Service stays as the agent knows it.
    let manifest = Manifest::of([after]);
    let slices: Vec<String> = manifest
        .documents()
        .iter()
        .filter(|one| one["kind"] == "EndpointSlice")
        .map(|one| format!("---\n{one}\n"))
        .collect();
    for text in [manifest.yaml(), slices.concat()] {
        let (file, known) = (change(&text), written(&agent));
        let (code, planned) = plan(&agent, file.path());
        assert_eq!((code, &planned["differs"]), (1, &Value::Bool(true)), "{planned:#}");
        for to in &tcp {
            let said = backends(&planned, "TCP");
            assert_eq!(said[&backend(&fixture, 1, *to)], ("drain".into(), "drain".into(), 2), "{planned:#}");
            assert_eq!(said[&backend(&fixture, 2, *to)], ("add".into(), "stay".into(), 0));
            assert_eq!(said.get(&backend(&fixture, 0, *to)), None, "nothing happens to it");
            let (change, fate, connections) = backends(&planned, "UDP")[&backend(&fixture, 1, *to)].clone();
            assert_eq!((change.as_str(), fate.as_str()), ("drain", "move"));
            assert!(connections >= 1, "{planned:#}");
        }
        let drained =
            planned["services"][0]["backends"].as_array().unwrap().iter().find(|one| one["change"] == "drain");
        assert_eq!(drained.map(|one| &one["deadlineSeconds"]), Some(&Value::from(1_200)));
        assert_eq!(planned["connections"]["drain"], 2 * tcp.len());
        assert_eq!(planned["connections"]["end"], 0);
        assert_eq!(written(&agent), known, "nothing was applied");
    }
    let file = change(&slices.concat());
    let shown = String::from_utf8(agent.cli(&["plan", "-f", file.path().to_str().unwrap()]).unwrap().stdout).unwrap();
    println!("{shown}");
    for said in ["2 drain", "active -> draining; at most 1200 s", "takes new connections", "Nothing was applied."] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    // Now it comes.
    agent.apply(&manifest).unwrap();
    let states = agent.states().unwrap();
    let is_in = |index: usize, to: SocketAddr, port: u16, state: &str| {
        let at = SocketAddr::new(fixture.backends[index].addresses().like(to.ip()), port).to_string();
        states.contains(&("web".to_owned(), at, state.to_owned()))
    };
    for to in &tcp {
        assert!(is_in(1, *to, 8080, "draining") && is_in(2, *to, 8080, "active") && is_in(0, *to, 8080, "active"));
    }
    assert!(leaving.iter_mut().all(|stream| stream.ask("on").unwrap().server == "b1"), "they drain");
    assert!(staying.iter_mut().all(|stream| stream.ask("on").unwrap().server == "b0"));
    for (to, socket) in flows {
        assert_ne!(socket.ask_at(to, "on").unwrap().server, "b1", "they moved");
    }
    assert_eq!(plan(&agent, change(&manifest.yaml()).path()).0, 0);
}

#[test]
fn connections_of_a_pod_that_another_one_replaces_end_as_planned() {
    let fixture = Fixture::new("planpod", Pods::Routed, 1, NodeOptions::default());
    let of = |uid: &str| {
        let pod = fixture.backends[0].addresses();
        Manifest::of([fixture.web_of(vec![Endpoint::ready(pod).on(&fixture.node.node_name()).pod(uid)])])
    };
    let agent = fixture.agent(&of("first"), &[]);
    let tcp = fixture.web().frontends(Protocol::Tcp);
    let mut held: Vec<Stream> = tcp.iter().map(|to| connected(&fixture, *to, "b0")).collect();
    let file = change(&of("second").yaml());
    let (code, planned) = plan(&agent, file.path());
    assert_eq!((code, &planned["connections"]["end"]), (1, &Value::from(tcp.len())), "{planned:#}");
    for to in &tcp {
        let said = &backends(&planned, "TCP")[&backend(&fixture, 0, *to)];
        assert_eq!(*said, ("replace".into(), "end".into(), 1));
    }
    assert!(held.iter_mut().all(|stream| stream.ask("still").is_ok()), "nothing was applied");
    agent.apply(&of("second")).unwrap();
    eventually("the tables hold the second pod", SOON, || (plan(&agent, file.path()).0 == 0).then_some(()));
    assert!(held.iter_mut().all(|stream| stream.ask("over").is_err()), "each side gets a RST");
}

#[test]
fn a_frontend_that_moves_is_named_with_its_owner() {
    let fixture = Fixture::new("planmove", Pods::Routed, 1, NodeOptions::default());
    let external = |name, last, ips: &[&str]| {
        let external_ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let service =
            Service { families: fixture.node.families(), ..Service::standard(name, last, fixture.endpoints()) };
        service.with(External { external_ips, ..External::default() })
    };
    let (web, without) = (external("web", 10, &["192.0.2.10"]), external("a", 11, &[]));
    let agent = fixture.agent(&Manifest::of([web, without]), &["--external-ips=on"]);
    let file = change(&Manifest::of([external("a", 11, &["192.0.2.10", "192.0.2.11"])]).yaml());
    let (code, planned) = plan(&agent, file.path());
    assert_eq!(code, 1);
    let services = planned["services"].as_array().unwrap();
    let said: Vec<(String, String)> = services
        .iter()
        .filter(|service| service["name"] == "a" && service["protocol"] == "TCP")
        .flat_map(|service| service["frontends"].as_array().unwrap())
        .map(|one| (one["change"].as_str().unwrap().to_owned(), one["from"].as_str().unwrap_or("-").to_owned()))
        .collect();
    let expected =
        [("move", "test/web:80/TCP"), ("add", "-")].map(|(change, from)| (change.to_owned(), from.to_owned()));
    assert_eq!(said, expected, "{planned:#}");
    assert!(services.iter().all(|service| service["name"] == "a"), "a frontend shows once: {planned:#}");
}

#[test]
fn what_cannot_be_planned_ends_with_2_and_a_sentence() {
    let fixture = Fixture::new("planno", Pods::Routed, 1, NodeOptions::default());
    let manifest = Manifest::of([fixture.web()]);
    let mut agent = fixture.agent(&manifest, &[]);
    let good = change(&manifest.yaml());
    let good = good.path().to_str().unwrap();
    let broken = change("kind: Service\n  name: [\n");
    let pod = change("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n");
    let nameless = change("apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {ports: [{port: 80}]}\n");
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    for (file, said) in [
        (path(&broken), format!("{}:2:", path(&broken))),
        (path(&pod), "neither a Service nor an EndpointSlice".to_owned()),
        (path(&nameless), "Service default/new: it has no clusterIP".to_owned()),
        ("/nowhere/c.yaml".to_owned(), "/nowhere/c.yaml cannot be read".to_owned()),
        // Nothing is on standard input.
        ("-".to_owned(), "standard input holds neither".to_owned()),
    ] {
        let (code, text) = error(&agent, &["-f", &file]);
        assert_eq!((code, text.contains(&said)), (Some(2), true), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(error(&agent, &[]).0, Some(2), "it takes a file");
    assert_eq!(plan(&agent, Path::new(good)).0, 0, "the agent goes on");
    agent.kill();
    let (code, text) = error(&agent, &["-f", good]);
    assert_eq!((code, text.contains("no agent is running")), (Some(2), true), "{text}");
}
