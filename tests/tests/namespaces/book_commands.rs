//! The commands of the pages that only read, as they are written, beside one running agent. [`lb_pages::commands`] finds them in the pages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use lb_pages::commands::{self, Block};
use lb_tests::agent::{Agent, Manifest, SOON, binary};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::topology::NodeOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What the pages plan.
const CHANGE: &str = "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: demo}, spec: {clusterIP: 10.96.7.7, ports: [{port: 80}]}}\n";
/// What the pages convert, and give to the doctor.
const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
const CONFIGURATION: &str = "source: kube\n";

/// How a command that only reads is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// To its end, with the folders of the agent.
    OnNode,
    /// It does not ask for the agent.
    Alone,
    /// It prints until it gets a signal.
    Stream,
    /// It prints tables until its output is closed. One is enough here.
    Once,
    /// To its end, in the folder of the reader's files, with a last argument in that folder.
    InFolder,
}

/// `None`: the command changes something, or ends nothing by itself.
fn reading(words: &[String]) -> Option<Reading> {
    let has = |word: &str| words.iter().any(|other| other == word);
    match words.first()?.as_str() {
        // Without a name, it writes into the folder that it is called in.
        "sysdump" if words.len() == 1 => None,
        "status" | "get" | "explain" | "plan" | "doctor" | "sysdump" => Some(Reading::OnNode),
        "audit" if has("--dry-run") => Some(Reading::OnNode),
        // Beside no agent: only the namespaces of this test lose what the agent left.
        "cleanup" if has("--dry-run") || words.len() == 1 => Some(Reading::OnNode),
        "top" if has("--once") => Some(Reading::OnNode),
        "top" => Some(Reading::Once),
        "man" => Some(Reading::InFolder),
        "maintenance" if has("list") => Some(Reading::OnNode),
        "monitor" => Some(Reading::Stream),
        "migrate" | "version" | "completions" => Some(Reading::Alone),
        _ => None,
    }
}

/// The exit codes that the pages give for a command that works.
fn allowed(words: &[String]) -> &'static [i32] {
    match words[0].as_str() {
        // 1: the packet is refused, something would differ, a check fails.
        "explain" | "plan" | "doctor" => &[0, 1],
        _ => &[0],
    }
}

/// Each command of the pages once, with the place where it stands first, and whether a block has it.
fn found(program: &str) -> BTreeMap<Vec<String>, (String, bool)> {
    let mut found = BTreeMap::<_, (String, bool)>::new();
    for command in commands::all() {
        if !matches!(command.block, None | Some(Block::Run)) {
            continue;
        }
        let Some(words) = command.arguments(program).filter(|words| !words.is_empty()) else { continue };
        let at = format!("{}:{}: {}", command.page, command.line, command.text);
        let entry = found.entry(words).or_insert((at, false));
        entry.1 |= command.block.is_some();
    }
    found
}

/// The folder of the files that the pages name.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("change.yaml", CHANGE), ("kube-proxy.yaml", KUBE_PROXY), ("ballast.yaml", CONFIGURATION)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// `words`, with files in this folder.
fn within(folder: &Path, words: &[String]) -> Vec<String> {
    let is_file = |word: &str| [".yaml", ".tar.gz"].iter().any(|end| word.ends_with(end)) && !word.contains('/');
    let place = |word: &String| if is_file(word) { folder.join(word).display().to_string() } else { word.clone() };
    words.iter().map(place).collect()
}

/// The services that the pages name.
const SERVICES: [(&str, &str, &str); 3] =
    [("demo", "web", "10.96.0.1"), ("test", "web", "10.96.0.10"), ("kube-system", "kube-dns", "10.96.0.20")];

/// An agent that serves them, each by the first backend.
fn serving(fixture: &Fixture) -> Agent {
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    let backend = fixture.backends[0].addresses().v4;
    let objects = SERVICES.map(|(namespace, name, address)| {
        let labels = format!("{{kubernetes.io/service-name: {name}}}");
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{clusterIP: {address}, \
             ports: [{{name: http, port: 80}}]}}}}\n---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}-1, \
             namespace: {namespace}, labels: {labels}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{{addresses: \
             [{backend}]}}]}}\n"
        )
    });
    agent.write_text(&objects.concat()).unwrap();
    eventually("the services are served", SOON, || {
        let shown = agent.cli(&["get", "services", "-A"]).unwrap().stdout;
        String::from_utf8_lossy(&shown).contains("kube-dns").then_some(())
    });
    agent
}

#[test]
fn commands_that_read_end_as_the_pages_say() {
    let fixture = Fixture::new("book", Pods::Routed, 1, NodeOptions::default());
    let mut agent = serving(&fixture);
    let (folder, mut counts) = (files(), BTreeMap::new());
    let (mut cleanup, others): (Vec<_>, Vec<_>) =
        found("ballast").into_iter().partition(|(words, _)| words[0] == "cleanup");
    for (words, (at, is_block)) in others {
        run(&agent, folder.path(), &words, &at, is_block, &mut counts);
    }
    bpftool_reads_maps(&agent);
    // It refuses beside an agent. Those that remove nothing come first.
    agent.stop().unwrap();
    cleanup.sort_by_key(|(words, _)| !words.contains(&"--dry-run".to_owned()));
    for (words, (at, is_block)) in cleanup {
        run(&agent, folder.path(), &words, &at, is_block, &mut counts);
    }
    println!("{counts:?}");
    for command in [
        "status",
        "get",
        "audit",
        "explain",
        "doctor",
        "monitor",
        "sysdump",
        "plan",
        "cleanup",
        "migrate",
        "top",
        "man",
        "completions",
    ] {
        assert!(counts.contains_key(command), "no page shows `ballast {command}`: {counts:?}");
    }
}

/// Runs a command that only reads, and counts it by its first word.
fn run(agent: &Agent, folder: &Path, words: &[String], at: &str, is_block: bool, counts: &mut BTreeMap<String, usize>) {
    let Some(kind) = reading(words) else {
        assert!(!is_block, "{at}: it changes something: the line above the block says who runs it");
        return;
    };
    let arguments = within(folder, words);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = match kind {
        Reading::OnNode => agent.cli(&arguments).unwrap(),
        Reading::Alone => Command::new(binary().unwrap()).args(&arguments).output().unwrap(),
        Reading::Once => agent.cli(&[&arguments[..], &["--once"]].concat()).unwrap(),
        Reading::Stream => interrupted(agent, &arguments),
        Reading::InFolder => {
            let arguments = [&arguments[..arguments.len() - 1], &["."]].concat();
            Command::new(binary().unwrap()).args(&arguments).current_dir(folder).output().unwrap()
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // Prose names commands without their arguments: every command line is parsed elsewhere.
    if !is_block && said.contains("Usage: ballast") {
        return;
    }
    let code = output.status.code();
    assert!(code.is_some_and(|code| allowed(words).contains(&code)), "{at}: {code:?}: {said}");
    *counts.entry(words[0].clone()).or_insert(0) += 1;
}

/// Starts it, lets it go on for a moment, and ends it as Ctrl-C does.
fn interrupted(agent: &Agent, arguments: &[&str]) -> Output {
    let mut child = agent.start_cli(arguments).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "{arguments:?} ended by itself");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let ended = eventually("the command ends", SOON, || child.try_wait().unwrap());
    assert!(ended.success(), "{arguments:?}: {ended}");
    child.wait_with_output().unwrap()
}

/// `bpftool` reads the maps that the pages name.
fn bpftool_reads_maps(agent: &Agent) {
    let tables = agent.bpffs().join("ballast/tables");
    let mut count = 0;
    for (words, (at, _)) in found("bpftool") {
        if words[0] != "map" || !words.contains(&"pinned".to_owned()) {
            continue;
        }
        let here = |word: &String| {
            let map = word.strip_prefix("$D/").or_else(|| word.strip_prefix("/sys/fs/bpf/ballast/tables/"));
            map.map_or_else(|| word.clone(), |map| tables.join(map).display().to_string())
        };
        let output = Command::new("bpftool").args(words.iter().map(here)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        // The tables of this node do not hold every key that the pages look up.
        let is_absent = words[1] == "lookup" && said.contains("ot found");
        assert!(output.status.success() || is_absent, "{at}: {said}");
        count += 1;
    }
    assert!(count > 10, "{count} commands were found");
}
