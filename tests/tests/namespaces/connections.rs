//! What `ballast get` shows of connections and backends, with the agent alive or dead.

mod ends;

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::abi::{Health, map_name, stat_kind};
use lb_common::outcome::Outcome;
use lb_tables::Pinned;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually, fresh_port};
use lb_tests::topology::NodeOptions;
use lb_userspace::observe::contents;
use serde_json::Value;

fn items(agent: &Agent, arguments: &[&str]) -> Vec<Value> {
    let list = agent.json(&[&["get"], arguments].concat()).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn number(item: &Value, field: &str) -> u64 {
    item[field].as_u64().unwrap_or_else(|| panic!("no {field} in {item}"))
}

#[test]
fn counters_are_switched_by_a_restart_that_breaks_no_connection() {
    let fixture = Fixture::new("counters", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agents = vec![fixture.agent(&Manifest::of([service.clone()]), &[])];
    let mut held: Vec<_> = service
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|to| Stream::connect(fixture.client.netns(), to).unwrap())
        .collect();
    for stream in &mut held {
        stream.ask("before").unwrap();
    }
    for item in items(&agents[0], &["connections", "--service", "web:80"]) {
        assert!(item["requestPackets"].is_null(), "they are off: {item}");
    }
    for switch in ["on", "off", "on"] {
        agents.last_mut().unwrap().kill();
        let flags = ["--flow-counters", switch, "--flow-timeouts", "open=48h"];
        agents.push(fixture.agent(&Manifest::of([service.clone()]), &flags));
        for stream in &mut held {
            stream.ask(switch).unwrap();
        }
    }
    // What was counted is read from the tables alone.
    let agent = agents.last_mut().unwrap();
    agent.kill();
    let shown = items(agent, &["connections", "--service", "web:80", "--state", "open"]);
    assert_eq!(shown.len(), 2, "{shown:?}");
    for item in &shown {
        // A question and its answer, and an acknowledgement or none.
        assert!(number(item, "requestPackets") >= 1 && number(item, "replyPackets") >= 1, "{item}");
        assert!(number(item, "requestBytes") > 40 && number(item, "replyBytes") > 40, "{item}");
        let expires_s = number(item, "expiresSeconds");
        assert!((86_401..=172_800).contains(&expires_s), "as the programs were loaded: {item}");
        assert!(item["moves"].is_null() && number(item, "ageSeconds") >= number(item, "idleSeconds"), "{item}");
    }
}

#[test]
fn every_packet_of_a_flow_is_counted_once_whatever_comes_back() {
    let fixture = Fixture::new("packets", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-counters", "on"]);
    for (to, headers) in service.frontends(Protocol::Udp).into_iter().zip([28, 48]) {
        let socket = Datagrams::unconnected(fixture.client.netns(), 0, to).unwrap();
        let mut sent = 0;
        for round in 0..5 {
            let text = format!("question {round}");
            sent += headers + text.len() as u64;
            socket.ask_at(to, &text).unwrap();
        }
        let address = fixture.client.addresses().like(to.ip()).to_string();
        let shown = items(&agent, &["connections", "--service", "test/web:53", "--client", &address]);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!((number(&shown[0], "requestPackets"), number(&shown[0], "replyPackets")), (5, 5));
        assert_eq!(number(&shown[0], "requestBytes"), sent);
        assert!(number(&shown[0], "replyBytes") > sent, "answers name the server, too");
    }
    // For the one backend of each family: the first packet of each direction began and opened the flow.
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    let counted = contents::stats(&maps).unwrap();
    for kind in [stat_kind::BACKEND4, stat_kind::BACKEND6] {
        let count = |outcome: Outcome| {
            let of = counted.iter().filter(|(key, _)| (key.kind, key.outcome) == (kind, outcome as u8));
            of.map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!([Outcome::Selected, Outcome::Forwarded, Outcome::Replied].map(count), [1, 4, 5], "{counted:?}");
    }
}

/// What `get services --rate` says of a service while `work` is repeated.
fn rates(agent: &Agent, service: &str, mut work: impl FnMut()) -> Value {
    let mut child = agent.start_cli(&["get", "services", "--rate", "--service", service, "-o", "json"]).unwrap();
    while child.try_wait().unwrap().is_none() {
        work();
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let item = list["items"][0].clone();
    assert_eq!(item["inBytesPerSecond"].is_null(), errors.contains("--flow-counters on"), "{item}: {errors}");
    item
}

#[test]
fn rates_are_those_of_the_service_that_has_traffic() {
    let fixture = Fixture::new("rates", Pods::Routed, 1, NodeOptions::default());
    let (web, other) = (fixture.web(), Service::standard("other", 12, fixture.endpoints()));
    let manifest = Manifest::of([web.clone(), other]);
    let agent = fixture.agent(&manifest, &["--flow-counters", "on"]);
    let frontends = web.frontends(Protocol::Tcp);
    let ask = || {
        for to in &frontends {
            Stream::connect(fixture.client.netns(), *to).unwrap().ask("who").unwrap();
        }
    };
    let rate = |rates: &Value, field: &str| rates[field].as_f64().unwrap_or_else(|| panic!("{field} of {rates}"));
    let all =
        ["connectionsPerSecond", "inPacketsPerSecond", "outPacketsPerSecond", "inBytesPerSecond", "outBytesPerSecond"];
    let busy = rates(&agent, "test/web:80", ask);
    for field in all {
        assert!(rate(&busy, field) > 0.0, "{field}: {busy}");
        let of_backends: f64 = busy["backends"].as_array().unwrap().iter().map(|backend| rate(backend, field)).sum();
        // Counters of new connections are read one after the other, while connections begin.
        let is_exact = field != "connectionsPerSecond";
        assert!(of_backends > 0.0, "{field}: {busy}");
        assert!(!is_exact || (of_backends - rate(&busy, field)).abs() < 1e-6, "{field}: {busy}");
    }
    // Four packets from the client at least, and none is smaller than its headers.
    assert!(rate(&busy, "inPacketsPerSecond") > 2.0 * rate(&busy, "connectionsPerSecond"), "{busy}");
    assert!(rate(&busy, "inBytesPerSecond") > 40.0 * rate(&busy, "inPacketsPerSecond"), "{busy}");
    let quiet = rates(&agent, "test/other:80", ask);
    assert!(all.iter().all(|field| rate(&quiet, field) == 0.0), "{quiet}");
    drop(agent);
    let agent = fixture.agent(&manifest, &[]);
    let busy = rates(&agent, "test/web:80", ask);
    assert!(rate(&busy, "connectionsPerSecond") > 0.0, "{busy}");
    let table = agent.cli(&["get", "services", "--rate"]).unwrap().stdout;
    assert!(String::from_utf8(table).unwrap().lines().next().unwrap().ends_with("  CPS"));
    let refused = agent.cli(&["get", "backends", "--rate"]).unwrap();
    assert!(!refused.status.success() && String::from_utf8(refused.stderr).unwrap().contains("ask for services"));
}

#[test]
fn top_shows_the_rates_and_the_source_of_a_service_with_traffic() {
    let fixture = Fixture::new("top", Pods::Routed, 1, NodeOptions::default());
    let web = fixture.web();
    let agent = fixture.agent(&Manifest::of([web.clone()]), &[]);
    let mut held = Stream::connect(fixture.client.netns(), web.frontends(Protocol::Tcp)[0]).unwrap();
    held.ask("who").unwrap();
    let arguments = ["top", "--once", "--interval", "500ms", "--service", "test/web:80"];
    let mut child = agent.start_cli(&arguments).unwrap();
    while child.try_wait().unwrap().is_none() {
        for to in web.frontends(Protocol::Tcp) {
            Stream::connect(fixture.client.netns(), to).unwrap().ask("who").unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\nsource: file fresh"), "{text}");
    let row = text.lines().find(|line| line.starts_with("test ")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..3], ["web", "80/TCP"], "{text}");
    assert!(cells[3].parse::<f64>().unwrap() > 0.0 && cells[4].parse::<u64>().unwrap() >= 1, "{text}");
    // Names of `get` are what its filters take.
    let names = agent.cli(&["get", "backends", "-o", "name", "--sort-by", "flows"]).unwrap().stdout;
    let names = String::from_utf8(names).unwrap();
    let first = names.lines().next().expect("a backend");
    assert!(!items(&agent, &["backends", "--backend", first]).is_empty(), "{names}");
}

/// Service ports and backends that have counters in the kernel's table: kind and id.
fn counted(agent: &Agent) -> BTreeSet<(u8, u32)> {
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    contents::stats(&maps).unwrap().into_iter().map(|(key, _)| (key.kind, key.id)).collect()
}

/// The table has nothing of it for the next owner of its ids either, and others keep what was counted.
#[test]
fn the_counters_of_a_deleted_service_go_with_it_and_no_others() {
    let fixture = Fixture::new("forgotten", Pods::Routed, 1, NodeOptions::default());
    let (web, other) = (fixture.web(), Service::standard("other", 12, fixture.endpoints()));
    let flags = [
        "--drain-period=1s",
        "--drain-max=0s",
        "--flow-timeouts=closing=1s,udp-unreplied=1s,udp-replied=1s,udp-stream=1s",
    ];
    let agent = fixture.agent(&Manifest::of([other.clone()]), &flags);
    let use_it = |service: &Service| {
        for to in service.frontends(Protocol::Tcp) {
            Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
        }
        for to in service.frontends(Protocol::Udp) {
            Datagrams::connected(fixture.client.netns(), fresh_port(), to).unwrap().ask("hello").unwrap();
        }
    };
    let selections = |name: &str| {
        let page = agent.metrics().unwrap();
        let is_it = |line: &&str| {
            line.starts_with("ballast_service_selections_total{") && line.contains(&format!("service=\"{name}\""))
        };
        page.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    use_it(&other);
    let of_other = counted(&agent);
    assert_eq!(of_other.len(), 6, "two service ports, and four backends: {of_other:?}");

    agent.apply(&Manifest::of([other.clone(), web.clone()])).unwrap();
    use_it(&web);
    assert_eq!(counted(&agent).len(), 12);
    assert_eq!((selections("web"), selections("other")), (vec!["2.0".to_owned(); 2], vec!["2.0".to_owned(); 2]));

    agent.apply(&Manifest::of([other.clone()])).unwrap();
    let is_shown = || items(&agent, &["services", "-A"]).iter().any(|item| item["name"] == "web");
    eventually("web is in no table", SOON, || (!is_shown() && counted(&agent) == of_other).then_some(()));
    let page = agent.metrics().unwrap();
    assert!(!page.contains("service=\"web\""), "{page}");
    assert_eq!(selections("other"), ["2.0", "2.0"]);

    // Made again, it has the same ids, or those that are free next, and counts from zero.
    agent.apply(&Manifest::of([other, web])).unwrap();
    assert_eq!(selections("web"), ["0.0", "0.0"]);
}

#[test]
fn connections_are_found_by_client_backend_and_state() {
    let fixture = Fixture::new("filters", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
        let server = stream.ask("who").unwrap().server;
        held.push((stream, server));
    }
    let count = |arguments: &[&str]| items(&agent, &[&["connections"], arguments].concat()).len();
    assert_eq!(count(&["--state", "open"]), 20);
    assert_eq!(count(&["--state", "half-open,closing,evicted"]), 0);
    assert_eq!(count(&["-n", "other"]), 0);
    let client = held[0].0.local().unwrap().to_string();
    assert_eq!(count(&["--client", &client]), 1);
    for (index, pod) in fixture.backends.iter().enumerate() {
        let expected = held.iter().filter(|(_, server)| *server == format!("b{index}")).count();
        let address = pod.addresses().v4.to_string();
        assert_eq!(count(&["--backend", &address]), expected);
        let backends = items(&agent, &["backends", "--backend", &format!("{address}:8080")]);
        assert_eq!(number(&backends[0], "flows"), expected as u64);
        assert_eq!(number(&backends[0], "halfOpenFlows"), 0);
    }
    let refused = agent.cli(&["get", "services", "--client", "10.0.0.1"]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("ask for connections"), "{said}");
}

#[test]
fn a_connection_that_nobody_answers_is_shown_half_open() {
    let fixture = Fixture::new("halfopen", Pods::Routed, 2, NodeOptions::default());
    // They receive what the client sends, and have no way back to it.
    for pod in &fixture.backends {
        let client = fixture.client.addresses();
        pod.namespace().ip(&format!("route add blackhole {}/32", client.v4)).unwrap();
        pod.namespace().ip(&format!("route add blackhole {}/128", client.v6)).unwrap();
    }
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-timeouts", "half-open=10m"]);
    for to in service.frontends(Protocol::Tcp) {
        let limit = Duration::from_millis(2_500);
        Stream::connect_from(fixture.client.netns(), 0, to, limit).unwrap_err();
    }
    agent.kill();
    let shown = items(&agent, &["connections", "--state", "half-open", "--service", "web:80"]);
    assert_eq!(shown.len(), 2, "{shown:?}");
    for item in &shown {
        let tried = item["tried"].as_array().unwrap();
        // Its SYN is sent again after a second: there is another backend to try.
        assert!(number(item, "moves") >= 1 && number(item, "moves") == tried.len() as u64, "{item}");
        assert!(number(item, "expiresSeconds") > 60, "as the programs were loaded: {item}");
    }
    let flows: u64 =
        items(&agent, &["backends", "--service", "web:80"]).iter().map(|item| number(item, "halfOpenFlows")).sum();
    assert_eq!(flows, 2);
}

/// Writes what the programs would have seen of a backend.
fn write_health(fixture: &Fixture, id: u32, change: impl FnOnce(Health) -> Health) {
    let path = fixture.node.bpffs().join("ballast/tables").join(map_name::HEALTH4);
    let map = aya::maps::Map::Array(aya::maps::MapData::from_pin(&path).unwrap());
    let mut health: aya::maps::Array<_, Health> = map.try_into().unwrap();
    let seen = health.get(&id, 0).unwrap();
    health.set(id, change(seen), 0).unwrap();
}

/// Id and generation of the one IPv4 backend of port 80, from the wide table.
fn identity(agent: &Agent) -> (u32, u32) {
    let output =
        agent.cli(&["get", "backends", "--service", "web:80", "--backend", "0.0.0.0/0", "-o", "wide"]).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().nth(1).unwrap_or_else(|| panic!("{text}"));
    let mut words = row.split_whitespace().rev().map(|word| word.parse().unwrap());
    let generation = words.next().unwrap();
    (words.next().unwrap(), generation)
}

#[test]
fn an_ejected_backend_is_shown_logged_and_counted_and_so_is_its_end() {
    let fixture = Fixture::new("ejected", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let (id, generation) = identity(&agent);
    let now_s = lb_userspace::agent::clock::monotonic().to_tenths() / 10;
    // Of the second that has begun, the tool may not have seen the end.
    write_health(&fixture, id, |seen| Health { generation, ejected_s: now_s - 8, answered_s: now_s - 10, ..seen });

    let shown = items(&agent, &["backends", "--state", "ejected"]);
    assert_eq!(shown.len(), 1);
    assert!(number(&shown[0], "ejectedSeconds") >= 7 && number(&shown[0], "answeredSeconds") >= 9, "{}", shown[0]);
    eventually("the agent finds it", SOON, || {
        let metrics = agent.metrics().unwrap();
        let lines =
            ["ballast_ejected_backends 1.0", "ballast_service_ejected{namespace=\"test\",service=\"web\",port=\"80\""];
        lines.iter().all(|line| metrics.contains(line)).then_some(())
    });
    assert!(agent.log().contains("ejected, new flows avoid it"), "{}", agent.log());

    write_health(&fixture, id, |seen| Health { ejected_s: 0, ..seen });
    assert!(items(&agent, &["backends", "--state", "ejected"]).is_empty());
    eventually("and that it is over", SOON, || agent.log().contains("no longer ejected").then_some(()));
    agent.kill();
    write_health(&fixture, id, |seen| Health { ejected_s: now_s, ..seen });
    let table = String::from_utf8(agent.cli(&["get", "services"]).unwrap().stdout).unwrap();
    assert!(table.contains("active, ejected"), "{table}");
}
