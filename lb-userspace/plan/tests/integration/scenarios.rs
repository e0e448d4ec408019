//! Scenario files: objects and commands in, tables out; each is run in several ways that must all end alike.
//!
//! A file in `scenarios/` holds sections, each headed by `-- COMMAND --`:
//! * at the head only, settings: `node NAME`, `nodeport-addresses all|primary|NETWORKS`, `external-ips on`,
//!   `service-proxy-name NAME`, `full MAP N`, `drain-max SECONDS`
//! * events, in any order between two other commands: `apply` (YAML, each document an event), `delete` (lines
//!   `Service NS/NAME`, `EndpointSlice NS/NAME` or `Node`)
//! * `addresses ADDRESS…` (of the node's links), `reserve ADDRESS PORT` (the node itself listens there), `advance SECONDS`,
//!   `maintenance on|off ADDRESS[:PORT]`, `unhealthy on|off NS/NAME PORT ADDRESS:PORT` (its active checks fail),
//!   `restart`, `flows ADDRESS` (a flow refers to the backends at this address; without an address: none does any more)
//! * what must hold now: `tables`, `refusals`, `health` (health-check node ports and their local endpoints)

use std::{fs, path::Path, time::Duration};

use lb_objects::manifest;
use lb_plan::plan::{Capacities, DrainLimits, NodePortAddresses, Part, PlanSettings};

mod scenario;

use scenario::{Event, EventOrder, ORDERS, Scenario};

/// Sections that say what must hold.
const CHECKS: [&str; 3] = ["-- tables --", "-- refusals --", "-- health --"];

/// Sections: command, body, line.
fn sections(text: &str) -> Vec<(String, String, usize)> {
    let mut sections: Vec<(String, String, usize)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
            sections.push((command.to_owned(), String::new(), number + 1));
        } else if let Some((_, body, _)) = sections.last_mut()
            && !line.starts_with("# ")
        {
            body.push_str(line);
            body.push('\n');
        }
    }
    sections
}

fn run(path: &Path, order: EventOrder) {
    let text = fs::read_to_string(path).expect("a readable scenario");
    let all = sections(&text);
    let head = |wanted: &str| all.iter().find_map(|(command, ..)| command.strip_prefix(wanted));
    let settings = PlanSettings {
        node_name: head("node ").map(str::to_owned),
        nodeport_addresses: head("nodeport-addresses ").map(nodeport_addresses).unwrap_or_default(),
        external_ips: head("external-ips ") == Some("on"),
        service_proxy_name: head("service-proxy-name ").map(str::to_owned),
        // Most scenarios end their drains with the period.
        ..PlanSettings::without_drain_max()
    };
    let max = head("drain-max ").map(|text| Duration::from_secs(text.parse().expect("seconds")));
    let max = max.unwrap_or(settings.drain_limits.max);
    let settings = PlanSettings { drain_limits: DrainLimits { max, ..settings.drain_limits }, ..settings };
    let mut scenario = Scenario::new(order, head("full ").map(capacities), settings);
    let mut found = Vec::new();
    let mut events = Vec::new();
    for (command, body, line) in &all {
        let place = format!("{}:{line} {order:?}", path.display());
        let (verb, argument) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "apply" => {
                events.extend(manifest::parse(&place, body).expect("a good manifest").into_iter().map(Event::Apply));
            }
            "delete" => events.extend(body.lines().filter(|l| !l.is_empty()).map(|l| Event::Delete(l.to_owned()))),
            _ => scenario.events(std::mem::take(&mut events)),
        }
        match verb {
            "apply" | "delete" | "node" | "full" | "nodeport-addresses" | "external-ips" | "service-proxy-name"
            | "drain-max" => {}
            "addresses" => scenario.address(argument),
            "reserve" => scenario.reserve(argument),
            "advance" => scenario.advance(argument.parse().expect("seconds")),
            "restart" => scenario.restart(),
            "flows" => scenario.refer(argument),
            "tables" => check(&place, body, &scenario.store().dump(), &mut found),
            "maintenance" => scenario.maintenance(argument),
            "unhealthy" => scenario.set_unhealthy(argument),
            "refusals" => check(&place, body, &scenario.refusals(), &mut found),
            "health" => check(&place, body, &scenario.health(), &mut found),
            other => panic!("{place}: unknown command {other:?}"),
        }
    }
    assert!(events.is_empty(), "{}: events after the last check", path.display());
    if is_blessing() && order == EventOrder::Forward {
        fs::write(path, bless(&text, &found)).expect("a scenario that can be written");
    }
}

/// What must hold now.
fn check(place: &str, wanted: &str, is: &str, found: &mut Vec<String>) {
    if is_blessing() {
        found.push(is.trim().to_owned());
    } else {
        assert_eq!(is.trim(), wanted.trim(), "{place}\nit is\n{is}");
    }
}

/// With `BALLAST_BLESS` set, what holds is what must: the files are written anew, for a look at the difference.
fn is_blessing() -> bool {
    std::env::var_os("BALLAST_BLESS").is_some()
}

fn bless(text: &str, found: &[String]) -> String {
    let mut found = found.iter();
    let (mut lines, mut skips) = (Vec::new(), false);
    for line in text.lines() {
        let is_command = line.starts_with("-- ");
        skips &= !is_command;
        if !skips || line.starts_with("# ") {
            lines.push(line);
        }
        if is_command && CHECKS.contains(&line) {
            lines.extend(found.next().into_iter().flat_map(|body| body.lines()));
            skips = true;
        }
    }
    lines.join("\n") + "\n"
}

/// `all`, `primary` or networks, as the option has it.
fn nodeport_addresses(argument: &str) -> NodePortAddresses {
    match argument {
        "all" => NodePortAddresses::All,
        "primary" => NodePortAddresses::Primary,
        networks => NodePortAddresses::Cidrs(networks.split(',').map(|n| n.parse().expect("a network")).collect()),
    }
}

/// `MAP N`: that map holds N elements, all others plenty.
fn capacities(argument: &str) -> Capacities {
    let (map, count) = argument.split_once(' ').expect("a map and a number");
    let count = count.parse().expect("a number");
    let part = Part::ALL.into_iter().find(|part| part.name() == map).expect("a map of the plan");
    Capacities::all(100).with(Part::Slots, 1000).with(part, count)
}

#[test]
fn every_scenario_ends_alike_whatever_the_way() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/scenarios");
    let mut paths: Vec<std::path::PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    paths.sort();
    assert!(paths.len() >= 10, "scenarios are missing");
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for order in ORDERS {
            // A table without room may serve the first that comes: such a file gives one order only.
            if text.contains("-- full ") && order != EventOrder::Forward {
                continue;
            }
            run(&path, order);
        }
    }
}
