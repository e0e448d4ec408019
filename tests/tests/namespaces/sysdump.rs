//! `ballast sysdump`: one archive of a node, with an agent and without one. Needs root and BPF.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use lb_tests::agent::{Agent, Manifest};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::Stream;
use lb_tests::topology::NodeOptions;
use serde_json::Value;

/// Files of the archive by name, the index first.
fn dump(agent: &Agent) -> (String, BTreeMap<String, Vec<u8>>) {
    let output = agent.cli(&["sysdump", "-"]).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // Progress is for terminals.
    assert!(output.status.success() && !told.contains("reading"), "{told}");
    let (mut index, mut files) = (None, BTreeMap::new());
    for file in tar::Archive::new(GzDecoder::new(output.stdout.as_slice())).entries().unwrap() {
        let mut file = file.unwrap();
        let path = file.path().unwrap().to_string_lossy().into_owned();
        let (folder, name) = path.split_once('/').unwrap();
        assert!(folder.starts_with("ballast-sysdump-"), "{path}");
        let (mut bytes, name) = (Vec::new(), name.to_owned());
        file.read_to_end(&mut bytes).unwrap();
        if index.is_none() {
            assert_eq!(name, "INDEX.txt", "it is the first file");
            index = Some(String::from_utf8(bytes).unwrap());
        } else {
            files.insert(name, bytes);
        }
    }
    (index.unwrap(), files)
}

fn json(files: &BTreeMap<String, Vec<u8>>, name: &str) -> Value {
    serde_json::from_slice(&files[name]).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn an_archive_lists_what_it_holds_and_needs_no_agent() {
    let fixture = Fixture::new("sysdump", Pods::Routed, 1, NodeOptions::default());
    let web = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([web.clone()]), &[]);
    let mut stream = Stream::connect(fixture.client.netns(), web.frontends(lb_tests::agent::Protocol::Tcp)[0]).unwrap();
    stream.ask("there?").unwrap();

    let (index, files) = dump(&agent);
    for (name, bytes) in &files {
        let line = index.lines().find(|line| line.contains(&format!("  {name}  ")));
        let line = line.unwrap_or_else(|| panic!("{name} is not listed:\n{index}"));
        assert!(line.trim_start().starts_with(&bytes.len().to_string()), "{line}");
    }
    assert_eq!(index.lines().skip(3).count(), files.len(), "{index}");
    assert!(json(&files, "status.json")["agent"]["version"].is_string());
    for (name, least) in [("services.json", 2), ("backends.json", 2), ("connections.json", 1)] {
        assert!(json(&files, name)["items"].as_array().unwrap().len() >= least, "{name}");
    }
    let text = |name: &str| String::from_utf8(files[name].clone()).unwrap();
    assert!(text("metrics.txt").contains("ballast_"), "{index}");
    assert!(text("kernel/bpf-programs.txt").contains(" pod_in "), "{}", text("kernel/bpf-programs.txt"));
    assert!(text("kernel/bpf-maps.txt").contains(" services4 "), "{}", text("kernel/bpf-maps.txt"));
    assert!(text("processes.txt").contains(" agent "), "{}", text("processes.txt"));

    agent.kill();
    let (index, files) = dump(&agent);
    assert!(json(&files, "status.json")["agent"].is_null());
    assert_eq!(json(&files, "connections.json")["items"].as_array().unwrap().len(), 1);
    let metrics = index.lines().find(|line| line.contains("metrics.txt")).unwrap();
    assert!(metrics.contains("refused"), "{metrics}");
}
