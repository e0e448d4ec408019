//! What is said of a change, and that the programmer does just that when the change comes.

use std::fmt::Write as _;

use super::*;
use crate::{
    apply::{MemoryStore, Programmer},
    plan::{Capacities, Differing, FrontendKind},
};
use lb_model::ObjectName;
use lb_objects::manifest::snapshot;

const NOW: Monotonic = Monotonic::from_duration(Duration::from_secs(1_000));
const LATER: Monotonic = Monotonic::from_duration(Duration::from_secs(1_010));

/// The Service `web` with a TCP and a UDP port, and endpoints as `ADDRESS CONDITIONS`.
fn web(spec: &str, endpoints: &[&str]) -> String {
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{clusterIP: 10.96.0.1, {spec} \
         ports: [{{name: http, port: 80}}, {{name: dns, port: 53, protocol: UDP}}]}}\n"
    );
    text += "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n\
         addressType: IPv4\nports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]\nendpoints:\n";
    for endpoint in endpoints {
        let (address, rest) = endpoint.split_once(' ').unwrap_or((endpoint, ""));
        let _ = writeln!(text, "- {{addresses: [{address}], {rest}}}");
    }
    text
}

fn key(name: &str, port: u16, protocol: Protocol) -> PortKey {
    PortKey { service: ObjectName::new("default", name), port, protocol }
}

struct Node {
    programmer: Programmer<MemoryStore>,
    inputs: Inputs,
    present: Snapshot,
}

impl Node {
    fn with(settings: PlanSettings, text: &str) -> Self {
        let store = MemoryStore::new(Capacities::all(16));
        let mut programmer = Programmer::restore(store, settings.clone(), NOW).expect("readable");
        let inputs = Inputs { settings, ..Inputs::default() };
        let present = snapshot(text);
        programmer.sync(&present, &inputs.facts, NOW);
        Self { programmer, inputs, present }
    }

    fn of(text: &str) -> Self {
        Self::with(PlanSettings { external_ips: true, ..PlanSettings::default() }, text)
    }

    fn preview(&self, text: &str) -> Preview {
        Preview::new(&self.present, &snapshot(text), self.inputs.clone())
    }

    /// What is said of the change. Then the change comes, and each record must be as was said.
    fn apply(&mut self, text: &str) -> Vec<PortEffect> {
        let preview = self.preview(text);
        let (before, tables) = (self.programmer.programmed().clone(), self.programmer.store().dump());
        let effects: Vec<PortEffect> =
            preview.ports().iter().filter_map(|key| preview.effect(key, &before, LATER)).collect();
        assert_eq!(self.programmer.store().dump(), tables, "a preview writes nothing");
        self.present = snapshot(text);
        self.programmer.sync(&self.present, &self.inputs.facts, LATER);
        let programmed = self.programmer.programmed();
        let mut said = BTreeSet::new();
        for (effect, backend) in effects.iter().flat_map(|effect| effect.backends.iter().map(move |one| (effect, one)))
        {
            let service = programmed.services().by_key(&effect.key).expect("written");
            let id = *service.current.get(&backend.address).expect("a record");
            let record = programmed.backends().records()[&id];
            let expected = backend.after.map_or(backend_state::GONE, |after| after.state);
            assert_eq!(record.state, expected, "{} {}", effect.key, backend.address);
            assert_eq!(backend.record.is_some_and(|(known, _)| known != id), backend.change == Change::Replace);
            said.insert(id);
            said.extend(backend.record.map(|(known, _)| known));
        }
        for (id, record) in before.backends().records() {
            assert!(
                said.contains(id) || programmed.backends().records()[id] == *record,
                "nothing was said of {}",
                record.address
            );
        }
        for effect in effects.iter().flat_map(|effect| &effect.frontends) {
            let is_there = programmed.frontends().contains(&effect.frontend);
            assert_eq!(is_there, effect.change != Change::End, "{}", effect.frontend);
        }
        effects
    }
}

/// Address, change, fate and limits in seconds of each backend of a service port.
fn backends(effects: &[PortEffect], protocol: Protocol) -> Vec<(String, Change, Fate, [Option<u64>; 2])> {
    let of_port = effects.iter().filter(|effect| effect.key.protocol == protocol);
    let seconds = |left: Option<Duration>| left.map(|left| left.as_secs());
    of_port
        .flat_map(|effect| &effect.backends)
        .map(|one| (one.address.ip().to_string(), one.change, one.fate, [seconds(one.drain), seconds(one.deadline)]))
        .collect()
}

#[test]
fn the_same_objects_change_nothing() {
    let text = web("", &["10.1.0.2", "10.1.0.3"]);
    assert!(Node::of(&text).preview(&text).ports().is_empty());
}

#[test]
fn one_that_leaves_drains_its_tcp_and_moves_its_udp() {
    let mut node = Node::of(&web("", &["10.1.0.2", "10.1.0.3"]));
    let effects = node.apply(&web("", &["10.1.0.2", "10.1.0.4"]));
    let limits = [Some(30), Some(3_600)];
    assert_eq!(
        backends(&effects, Protocol::Tcp),
        [
            ("10.1.0.3".to_owned(), Change::Drain, Fate::Drain, limits),
            ("10.1.0.4".to_owned(), Change::Add, Fate::Stay, [None; 2]),
        ]
    );
    assert_eq!(backends(&effects, Protocol::Udp)[0].2, Fate::Move);
    let tcp = effects.iter().find(|effect| effect.key == key("web", 80, Protocol::Tcp)).expect("it differs");
    assert_eq!((tcp.change, tcp.taking), (Change::Change, [2, 2]));
    assert!(tcp.backends[1].after.expect("added").takes_new && tcp.backends[1].before.is_none());
}

#[test]
fn udp_ends_where_no_other_backend_is_left() {
    let mut node = Node::of(&web("", &["10.1.0.2"]));
    let effects = node.apply(&web("", &[]));
    assert_eq!(backends(&effects, Protocol::Udp)[0].2, Fate::End);
    assert_eq!(backends(&effects, Protocol::Tcp)[0].2, Fate::Drain);
    assert_eq!(effects[0].taking, [1, 0]);
}

#[test]
fn another_pod_at_the_address_ends_all_connections_of_the_first() {
    let mut node = Node::of(&web("", &["10.1.0.2 targetRef: {uid: a}"]));
    let effects = node.apply(&web("", &["10.1.0.2 targetRef: {uid: b}"]));
    let replaced = |fate| vec![("10.1.0.2".to_owned(), Change::Replace, fate, [None; 2])];
    assert_eq!(backends(&effects, Protocol::Tcp), replaced(Fate::End));
    assert_eq!(backends(&effects, Protocol::Udp), replaced(Fate::Move));
}

#[test]
fn a_service_that_goes_ends_its_frontends_and_drains_its_backends() {
    let other = web("", &[]).replace("name: web", "name: other").replace("10.96.0.1", "10.96.0.2");
    let other = other.replace("service-name: web", "service-name: other");
    let mut node = Node::of(&(web("", &["10.1.0.2"]) + &other));
    let effects = node.apply(&other);
    assert!(effects.iter().all(|effect| effect.change == Change::End && effect.key.service.name.as_ref() == "web"));
    let frontends: Vec<_> = effects.iter().flat_map(|effect| &effect.frontends).collect();
    assert_eq!(frontends.iter().map(|one| one.change).collect::<Vec<_>>(), [Change::End; 2]);
    let fates: Vec<(Protocol, Fate)> = frontends.iter().map(|one| (one.frontend.protocol, one.fate)).collect();
    assert_eq!(fates, [(Protocol::Udp, Fate::End), (Protocol::Tcp, Fate::Drain)]);
    assert_eq!(backends(&effects, Protocol::Tcp)[0].1, Change::Drain);
    assert_eq!(backends(&effects, Protocol::Udp)[0].2, Fate::End);
}

#[test]
fn a_frontend_that_another_service_takes_over_moves_and_shows_once() {
    let ip = "externalIPs: [192.0.2.1],";
    let other = |ip: &str| {
        let text = web(ip, &["10.1.0.9"]).replace("name: web", "name: a").replace("10.96.0.1", "10.96.0.2");
        text.replace("service-name: web", "service-name: a")
    };
    let mut node = Node::of(&(web(ip, &["10.1.0.2"]) + &other("")));
    // The first by name has it.
    let effects = node.apply(&(web(ip, &["10.1.0.2"]) + &other(ip)));
    assert_eq!(effects.len(), 2, "{effects:#?}");
    for effect in &effects {
        let [moved] = &effect.frontends[..] else { panic!("{effect:#?}") };
        assert_eq!(
            (effect.key.service.name.as_ref(), moved.change, moved.kind),
            ("a", Change::Move, FrontendKind::ExternalIp)
        );
        assert_eq!(moved.from.as_ref().map(|from| from.service.name.as_ref()), Some("web"));
        assert_eq!(moved.fate, Fate::Stay);
    }
    let refusals = node.preview(&(web(ip, &["10.1.0.2"]) + &other(""))).refusals();
    assert!(refusals.is_empty(), "the way back refuses nothing: {refusals:?}");
}

#[test]
fn one_that_is_not_ready_keeps_tcp_and_one_that_terminates_has_a_deadline() {
    let mut node = Node::of(&web("", &["10.1.0.2", "10.1.0.3", "10.1.0.4"]));
    let unready = "10.1.0.3 conditions: {ready: false}";
    let terminating = "10.1.0.4 conditions: {ready: false, serving: true, terminating: true}";
    let effects = node.apply(&web("", &["10.1.0.2", unready, terminating]));
    assert_eq!(
        backends(&effects, Protocol::Tcp),
        [
            ("10.1.0.3".to_owned(), Change::Change, Fate::Stay, [None; 2]),
            ("10.1.0.4".to_owned(), Change::Change, Fate::Drain, [None, Some(3_600)]),
        ]
    );
    let udp: Vec<Fate> = backends(&effects, Protocol::Udp).iter().map(|(_, _, fate, _)| *fate).collect();
    assert_eq!(udp, [Fate::Move, Fate::Stay], "the one that terminates still serves");
    let unready = effects[0].backends[0].after.expect("it stays");
    assert!(!unready.takes_new && unready.state == backend_state::UNREADY);
}

#[test]
fn one_that_comes_back_in_time_keeps_its_connections() {
    let mut node = Node::of(&web("", &["10.1.0.2", "10.1.0.3"]));
    node.apply(&web("", &["10.1.0.2"]));
    let effects = node.apply(&web("", &["10.1.0.2", "10.1.0.3"]));
    let [back] = &effects.last().expect("it differs").backends[..] else { panic!("{effects:#?}") };
    assert_eq!((back.change, back.fate, back.deadline), (Change::Change, Fate::Stay, None));
    assert_eq!(back.before.map(|before| before.state), Some(backend_state::DRAINING));
    assert_eq!(back.after.map(|after| (after.state, after.takes_new)), Some((backend_state::ACTIVE, true)));
}

#[test]
fn limits_of_the_service_count_and_without_any_time_connections_end() {
    let limits = DrainLimits { period: Duration::ZERO, max: Duration::ZERO };
    let settings = PlanSettings { drain_limits: limits, ..PlanSettings::default() };
    let node = Node::with(settings, &web("", &["10.1.0.2", "10.1.0.3"]));
    let preview = node.preview(&web("", &["10.1.0.2"]));
    let effect =
        preview.effect(&key("web", 80, Protocol::Tcp), node.programmer.programmed(), LATER).expect("it differs");
    assert_eq!((effect.backends[0].change, effect.backends[0].fate), (Change::Drain, Fate::End));
    let own = |text: String| text.replacen("{name: web}", "{name: web, annotations: {ballast.dev/drain-max: 2m}}", 1);
    let preview = node.preview(&own(web("", &["10.1.0.2"])));
    let effect =
        preview.effect(&key("web", 80, Protocol::Tcp), node.programmer.programmed(), LATER).expect("it differs");
    assert_eq!((effect.backends[0].fate, effect.backends[0].deadline), (Fate::Drain, Some(Duration::from_mins(2))));
    let expected = Differing { name: "drainMax", before: "none".to_owned(), after: "120 s".to_owned() };
    assert_eq!(effect.settings, [expected]);
}

#[test]
fn settings_and_policies_differ_by_name() {
    let mut node = Node::of(&web("", &["10.1.0.2"]));
    let effects = node.apply(&web("sessionAffinity: ClientIP, internalTrafficPolicy: Local,", &["10.1.0.2"]));
    let tcp = effects.iter().find(|effect| effect.key.protocol == Protocol::Tcp).expect("it differs");
    let named = |all: &[Differing]| {
        all.iter().map(|one| format!("{} {}->{}", one.name, one.before, one.after)).collect::<Vec<_>>()
    };
    assert_eq!(named(&tcp.settings), ["affinitySeconds 0->10800"]);
    let said = named(&tcp.frontends[0].settings);
    assert!(said.contains(&"internalTrafficPolicy Cluster->Local".to_owned()), "{said:?}");
    // The endpoint is on no node, so not on this one.
    assert_eq!((tcp.taking, tcp.backends[0].after.map(|after| after.takes_new)), ([1, 0], Some(false)));
}

#[test]
fn a_change_without_room_is_said_by_the_name_of_the_map() {
    let addresses: Vec<String> = (1..=40).map(|last| format!("10.1.0.{last}")).collect();
    let endpoints: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let node = Node::of(&web("", &endpoints[..1]));
    let (key, programmed) = (key("web", 80, Protocol::Tcp), node.programmer.programmed());
    let refusal = node.preview(&web("", &endpoints)).no_room(&key, programmed, LATER).expect("16 records");
    assert!(refusal.reason.contains("backends4"), "{refusal}");
    assert_eq!(node.preview(&web("", &endpoints[..3])).no_room(&key, programmed, LATER), None);
}

#[test]
fn a_health_check_port_shows_how_many_local_endpoints_it_counts() {
    let spec = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000,";
    let settings = PlanSettings { node_name: Some("n1".to_owned()), ..PlanSettings::default() };
    let node = Node::with(settings, &web(spec, &["10.1.0.2 nodeName: n1", "10.1.0.3 nodeName: n1"]));
    let checks = node.preview(&web(spec, &["10.1.0.2 nodeName: n1"])).health_checks();
    let counts = |check: &Option<HealthCheck>| check.as_ref().map(|check| check.local_ready);
    assert_eq!(
        checks.iter().map(|one| (one.port, counts(&one.before), counts(&one.after))).collect::<Vec<_>>(),
        [(32_000, Some(2), Some(1))]
    );
}
