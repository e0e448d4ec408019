//! An agent takes over only what fits: anything else is refused by name, and what is at work goes on working.

use std::path::Path;

use aya::EbpfLoader;
use lb_common::abi::{ABI_VERSION, Config, map_name};
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Stream, eventually};
use lb_tests::strays::{SYN, segment, send};
use lb_tests::test_run;
use lb_tests::topology::{NodeOptions, SERVICE_NET4};

/// Starts an agent that must be refused; returns what it said.
fn refusal(agent: &mut Agent) -> String {
    let output = agent.run_to_end().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let sentences = said.lines().filter(|line| line.starts_with("ballast: ")).count();
    assert_eq!(sentences, 1, "{said}");
    said
}

/// Pins a map of ours with another capacity.
fn pin_other_map(name: &str, entries: u32, path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut loader = EbpfLoader::new();
    loader.map_max_entries(name, entries).map_pin_path(name, path);
    drop(loader.load(&std::fs::read(test_run::object().unwrap()).unwrap()).unwrap());
    assert!(path.exists());
}

/// What lies pinned below the agent's folder.
fn pins(bpffs: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(bpffs.join("ballast"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A version before knew fewer outcomes, and no service CIDRs.
#[test]
fn maps_of_a_version_that_knew_less_are_taken_over() {
    let fixture = Fixture::new("knewless", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let flag = format!("--service-cidr={SERVICE_NET4}");
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[&flag]);
    let client = fixture.client.netns();
    let mut held = Stream::connect(client, service.frontends(Protocol::Tcp)[0]).unwrap();
    held.ask("before").unwrap();
    agent.kill();
    let pin = |name: &str| fixture.node.bpffs().join("ballast/tables").join(name);
    for name in [map_name::OUTCOMES, map_name::SERVICE_CIDRS] {
        std::fs::remove_file(pin(name)).unwrap();
    }
    pin_other_map(map_name::OUTCOMES, 50, &pin(map_name::OUTCOMES));

    agent.restart().unwrap();
    held.ask("after").unwrap();
    let before = Counters::read(fixture.node.bpffs()).unwrap();
    let nobodys = "10.96.200.99".parse().unwrap();
    send(client, nobodys, libc::IPPROTO_TCP, &segment(SYN)).unwrap();
    Stream::connect(client, service.frontends(Protocol::Tcp)[0]).unwrap().ask("new").unwrap();
    eventually("both are counted", SOON, || {
        let after = Counters::read(fixture.node.bpffs()).unwrap();
        let counted = [Outcome::Selected, Outcome::DroppedNoService].map(|outcome| after.since(&before, outcome));
        (counted == [1, 1]).then_some(())
    });
}

#[test]
fn a_map_of_another_kind_is_refused() {
    let fixture = Fixture::new("otherkind", Pods::Routed, 1, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    agent.kill();
    let path = fixture.node.bpffs().join("ballast/tables").join(map_name::BACKENDS4);
    std::fs::remove_file(&path).unwrap();
    // The slots under the name of the backends.
    pin_other_map(map_name::SLOTS, 512, &path);
    let said = refusal(&mut agent);
    assert!(said.contains(map_name::BACKENDS4) && said.contains("ballast cleanup"), "{said}");
}

#[test]
fn tables_of_another_version_are_refused_and_go_on_serving() {
    let fixture = Fixture::new("otherabi", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let mut held = Stream::connect(fixture.client.netns(), service.frontends(Protocol::Tcp)[0]).unwrap();
    held.ask("before").unwrap();
    agent.kill();

    let path = fixture.node.bpffs().join("ballast/tables").join(map_name::CONFIG);
    let map = aya::maps::Map::Array(aya::maps::MapData::from_pin(&path).unwrap());
    let mut config: aya::maps::Array<_, Config> = map.try_into().unwrap();
    let found = config.get(&0, 0).unwrap();
    assert_eq!(found.abi_version, ABI_VERSION);
    config.set(0, Config { abi_version: ABI_VERSION + 1, ..found }, 0).unwrap();

    let before = pins(fixture.node.bpffs());
    let said = refusal(&mut agent);
    assert!(said.contains("version") && said.contains(&(ABI_VERSION + 1).to_string()), "{said}");
    assert_eq!(pins(fixture.node.bpffs()), before, "the old state keeps working");
    held.ask("after").unwrap();
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("new").unwrap();
    }

    config.set(0, found, 0).unwrap();
    agent.restart().unwrap();
    held.ask("taken over").unwrap();
}

#[test]
fn other_tc_mechanism_after_a_restart_replaces_the_first() {
    let fixture = Fixture::new("switch", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let manifest = Manifest::of([service.clone()]);
    let mut first = fixture.agent(&manifest, &["--tc-attach", "tcx"]);
    let mut held: Vec<Stream> = service
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|to| Stream::connect(fixture.client.netns(), to).unwrap())
        .collect();
    for (attach, other) in [("clsact", "tcx"), ("tcx", "clsact")] {
        first.kill();
        let mut next = Agent::prepare(&fixture.node, &["--tc-attach", attach]).unwrap();
        next.write(&manifest).unwrap();
        next.restart().unwrap();
        for stream in &mut held {
            stream.ask("still").unwrap();
        }
        for to in service.frontends(Protocol::Tcp) {
            Stream::connect(fixture.client.netns(), to).unwrap().ask("new").unwrap();
        }
        let status = next.json(&["status"]).unwrap().to_string();
        let how = |name: &str| status.contains(&format!("\"how\":\"{name}\",\"point\":\"in\""));
        assert!(how(attach) && !how(other), "{status}");
        next.kill();
        std::mem::forget(next); // Its clean-up would end the connections that are held.
    }
}
