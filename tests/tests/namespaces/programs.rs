//! Which programs an agent loads: those that its interfaces need, and none that the agent before it left in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use aya::maps::{Map, MapData, ProgramArray};
use aya::programs::ProgramInfo;
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{Node, NodeOptions};
use serde_json::Value;

/// Ids of the pinned programs, by the name of the pin.
fn pinned(node: &Node) -> BTreeMap<String, u32> {
    let entries = std::fs::read_dir(node.bpffs().join("ballast/programs")).unwrap();
    // The maps that the programs share are pinned there as well.
    let program = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let info = ProgramInfo::from_pin(&path).ok()?;
        let is_program = info.name_as_str().is_some_and(|program| !program.is_empty() && name.starts_with(program));
        is_program.then(|| (name, info.id()))
    };
    entries.filter_map(|entry| program(entry.unwrap().path())).collect()
}

/// Names of the programs that the agent has in the kernel.
fn loaded(agent: &Agent) -> BTreeSet<String> {
    let status = agent.json(&["status"]).unwrap();
    let programs = status["agent"]["datapath"]["programs"].as_array().unwrap();
    programs.iter().map(|program| program["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_restart_opens_the_programs_of_the_agent_before() {
    let fixture = Fixture::new("programs", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let manifest = Manifest::of([service.clone()]);
    let mut agent = fixture.agent(&manifest, &[]);
    let mut held = Stream::connect(fixture.client.netns(), service.frontends(Protocol::Tcp)[0]).unwrap();
    let first = pinned(&fixture.node);
    assert!(first.keys().any(|name| name.starts_with("pod_in-")), "{first:?}");
    for stopped in [false, true] {
        if stopped {
            agent.stop().unwrap();
        }
        agent.restart().unwrap();
        assert_eq!(pinned(&fixture.node), first, "nothing was loaded again");
        held.ask("again").unwrap();
    }

    // Another constant makes other programs: those take the place of the first ones.
    agent.kill();
    let agent = fixture.agent(&manifest, &["--flow-counters", "on"]);
    eventually("the programs are other ones", SOON, || {
        let now = pinned(&fixture.node);
        (now.len() == first.len() && now.keys().all(|name| !first.contains_key(name))).then_some(())
    });
    held.ask("after").unwrap();
    drop(agent);
}

#[test]
fn a_pin_that_holds_something_else_is_replaced() {
    let fixture = Fixture::new("otherpin", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let folder = fixture.node.bpffs().join("ballast/programs");
    let pin = |prefix: &str| {
        let name = pinned(&fixture.node).into_keys().find(|name| name.starts_with(prefix)).unwrap();
        folder.join(name)
    };
    agent.kill();
    // The pins of two programs change places.
    let (one, two, aside) = (pin("pod_in-"), pin("pod_out-"), folder.join("aside"));
    for (from, to) in [(&one, &aside), (&two, &one), (&aside, &two)] {
        std::fs::rename(from, to).unwrap();
    }
    agent.restart().unwrap();
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
    }
    for (pin, name) in [(one, "pod_in"), (two, "pod_out")] {
        assert_eq!(ProgramInfo::from_pin(pin).unwrap().name_as_str(), Some(name));
    }
}

#[test]
fn a_program_is_loaded_when_the_first_interface_needs_it() {
    let fixture = Fixture::new("needed", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for name in ["bridge_in", "node_in_l3", "node_out_l3", "xdp_node"] {
        assert!(!loaded(&agent).contains(name), "no interface of this node needs {name}");
    }
    let late = fixture.node.bridged_pod("late").unwrap();
    eventually("the bridge has its program", SOON, || {
        let status = agent.json(&["status"]).ok()?;
        let links = status["agent"]["datapath"]["links"].as_array()?.clone();
        links.iter().any(|link| link["programs"][0]["program"] == "bridge_in").then_some(())
    });
    assert!(loaded(&agent).contains("bridge_in"));
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(late.netns(), to).unwrap().ask("hello").unwrap();
    }
}

/// Takes every program out of the array that the programs at tc call.
fn empty_array(node: &Node) {
    let entries = std::fs::read_dir(node.bpffs().join("ballast/programs")).unwrap();
    let named = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("tc_programs-");
    let path = entries.map(|entry| entry.unwrap().path()).find(named).unwrap();
    let mut array = ProgramArray::try_from(Map::ProgramArray(MapData::from_pin(path).unwrap())).unwrap();
    for stage in TcStage::ALL {
        for slot in [stage.slot::<4>(), stage.slot::<16>()] {
            array.clear_index(&slot).unwrap();
        }
    }
}

#[test]
fn without_the_programs_that_are_called_only_packets_of_services_are_dropped_and_counted() {
    let fixture = Fixture::new("emptied", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let client = fixture.client.netns();
    let frontends = service.frontends(Protocol::Tcp);
    let mut held: Vec<_> = frontends.iter().map(|to| Stream::connect(client, *to).unwrap()).collect();
    agent.kill();
    let before = Counters::read(fixture.node.bpffs()).unwrap();
    empty_array(&fixture.node);
    for to in &frontends {
        let refused = Stream::connect_from(client, 0, *to, Duration::from_secs(1));
        assert!(refused.is_err(), "nothing can serve {to}");
    }
    let backend = fixture.endpoints()[0].addresses;
    for address in [IpAddr::from(backend.v4), IpAddr::from(backend.v6)] {
        Stream::connect(client, (address, 8080).into()).unwrap().ask("not a service's").unwrap();
    }
    let dropped = Counters::read(fixture.node.bpffs()).unwrap().since(&before, Outcome::NoProgram);
    assert!(dropped >= 2, "{dropped} packets are counted");

    agent.restart().unwrap();
    for stream in &mut held {
        stream.ask("the connection has survived").unwrap();
    }
    for to in frontends {
        Stream::connect(client, to).unwrap().ask("new").unwrap();
    }
}

#[test]
fn an_audit_names_the_programs_that_were_taken_out_and_puts_them_back() {
    let fixture = Fixture::new("refilled", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--audit-interval=off"]);
    empty_array(&fixture.node);
    let audit = agent.cli(&["audit", "-o", "json"]).unwrap();
    assert_eq!(audit.status.code(), Some(1), "{audit:?}");
    let report: Value = serde_json::from_slice(&audit.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    for stage in TcStage::ALL {
        for (slot, program) in [stage.slot::<4>(), stage.slot::<16>()].into_iter().zip(stage.programs()) {
            let entry = format!("slot {slot} ({program})");
            let is_it = |finding: &&Value| finding["table"] == "tc_programs" && finding["entry"] == *entry;
            let finding = findings.iter().find(is_it).unwrap_or_else(|| panic!("{entry} is missing: {report}"));
            assert_eq!(finding["repaired"], true, "{finding}");
        }
    }
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("new").unwrap();
    }
    assert_eq!(agent.cli(&["audit"]).unwrap().status.code(), Some(0));
}
