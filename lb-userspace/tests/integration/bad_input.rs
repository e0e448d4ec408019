//! The binary as a user meets it when something is wrong: one sentence with the remedy, and an exit code that is not 0.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// One at a time: an agent that comes far enough locks the network namespace, which all tests here share.
static TURN: Mutex<()> = Mutex::new(());

fn ballast(arguments: &[&str], dir: &Path) -> Output {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = ["--bpffs", &dir.display().to_string(), "--run-dir", &dir.display().to_string()].map(str::to_owned);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast"));
    command.args(arguments).args(place).output().expect("the binary runs")
}

/// Runs a command that must fail; returns its only complaint.
fn complaint(arguments: &[&str], dir: &Path) -> String {
    let output = ballast(arguments, dir);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("ballast: ")).collect();
    let [line] = lines.as_slice() else { panic!("expected one sentence: {text}") };
    assert!(!Path::new(dir).join("ballast").exists(), "something was left behind");
    (*line).to_owned()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn agent_without_source() {
    let error = complaint(&["agent"], dir().path());
    assert!(error.contains("--source file=PATH"), "{error}");
}

#[test]
fn agent_with_a_missing_manifest() {
    let (dir, free) = (dir(), ["--health-bind=127.0.0.1:0", "--metrics-bind=127.0.0.1:0"]);
    let error = complaint(&["agent", "--source=file=/nowhere/m.yaml", free[0], free[1]], dir.path());
    assert!(error.contains("/nowhere/m.yaml") && error.contains("give a readable file"), "{error}");
}

#[test]
fn agent_with_a_broken_manifest() {
    let (dir, free) = (dir(), ["--health-bind=127.0.0.1:0", "--metrics-bind=127.0.0.1:0"]);
    let manifest = dir.path().join("m.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: [\n").expect("writable");
    let source = format!("--source=file={}", manifest.display());
    let error = complaint(&["agent", &source, free[0], free[1]], dir.path());
    assert!(error.contains("m.yaml:2:"), "{error}");
}

#[test]
fn a_key_given_twice_is_told_without_advice_for_programmers() {
    let (dir, free) = (dir(), ["--health-bind=127.0.0.1:0", "--metrics-bind=127.0.0.1:0"]);
    let manifest = dir.path().join("m.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: Service\nkind: Service\n").expect("writable");
    let source = format!("--source=file={}", manifest.display());
    let error = complaint(&["agent", &source, free[0], free[1]], dir.path());
    assert!(error.contains("m.yaml:3:") && error.contains("duplicate") && error.contains("kind"), "{error}");
    assert!(!error.contains("Options"), "{error}");
}

#[test]
fn agent_whose_port_is_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let flag = format!("--metrics-bind={address}");
    let error = complaint(&["agent", "--source=kube", "--health-bind=127.0.0.1:0", &flag], dir().path());
    assert!(error.contains("--metrics-bind") && error.contains(&address), "{error}");
    assert!(error.contains("in use") && error.contains("another port"), "{error}");
}

#[test]
fn agent_with_an_unknown_key_in_its_configuration() {
    let dir = dir();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, "source: kube\nsoket-lb: off\n").expect("writable");
    let error = complaint(&["agent", "--config", &file.display().to_string()], dir.path());
    assert!(error.contains("line 2 column 1") && error.contains("soket-lb"), "{error}");
}

#[test]
fn agent_with_an_unreadable_kubeconfig() {
    let arguments = ["agent", "--source=kube", "--kubeconfig=/nowhere/config", "--health-bind=127.0.0.1:0"];
    let error = complaint(&[&arguments[..], &["--metrics-bind=127.0.0.1:0"]].concat(), dir().path());
    assert!(error.contains("/nowhere/config") && error.contains("--kubeconfig"), "{error}");
}

#[test]
fn get_where_no_agent_has_been() {
    let dir = dir();
    for what in ["services", "backends", "connections"] {
        let error = complaint(&["get", what, "-o", "json"], dir.path());
        assert!(error.contains("is not pinned") && error.contains("--bpffs"), "{error}");
    }
}

#[test]
fn status_where_no_agent_has_been_is_an_answer() {
    let dir = dir();
    let output = ballast(&["status", "-o", "json"], dir.path());
    assert!(output.status.success(), "{output:?}");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(status["agent"].is_null() && status["tables"].is_null(), "{status}");
    assert!(status["agentError"].as_str().is_some_and(|error| error.contains("no agent is running")), "{status}");
}
