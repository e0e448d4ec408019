//! The fast path of pods on a bridge, where a pod makes the bridge's tables large. Needs `bridge` and `ip`.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::Value;

/// How long a switch may take: the agent looks once a second.
const SWITCH: Duration = Duration::from_mins(1);
/// Addresses that a pod sends from.
const FLOOD: u32 = 50_000;
/// More neighbours than are checked on one bridge.
const NEIGHBOURS: u32 = 5_000;
const BRIDGE: &str = "cni0";

/// Runs commands of `ip` or `bridge` on the node.
fn batch(fixture: &Fixture, program: &str, lines: &str) {
    let mut command = Command::new(program);
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = fixture.node.netns().start(&mut command).unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program}");
}

fn address(number: u32) -> String {
    let [a, b, c, d] = number.to_be_bytes();
    format!("02:77:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

fn fast_path(agent: &Agent) -> Value {
    agent.json(&["status"]).unwrap()["agent"]["datapath"]["fastPath"].clone()
}

/// Asks from there until new flows take the fast path.
fn warm(from: &NetNs, fixture: &Fixture, agent: &Agent) {
    for to in fixture.web().frontends(Protocol::Tcp) {
        eventually("a new flow takes the fast path", SWITCH, || {
            let before = agent.counted(Outcome::FastPath).unwrap();
            Stream::connect(from, to).unwrap().ask("warm").unwrap();
            (agent.counted(Outcome::FastPath).unwrap() > before).then_some(())
        });
    }
}

/// How long the agent's processor time is measured: it looks at the bridges once a second.
const TWO_TURNS: Duration = Duration::from_secs(2);

/// Processor time that the agent takes in two turns.
fn busy(agent: &Agent) -> Duration {
    let pid = Pid::from_raw(agent.pid().unwrap().cast_signed());
    let clock = ClockId::pid_cpu_clock_id(pid).unwrap();
    let before = clock.now().unwrap();
    std::thread::sleep(TWO_TURNS);
    Duration::from(clock.now().unwrap() - before)
}

#[test]
fn a_pod_that_sends_from_many_addresses_keeps_no_agent_busy() {
    let fixture = Fixture::new("fdb", Pods::Bridged, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    warm(fixture.client.netns(), &fixture, &agent);
    let quiet = busy(&agent);
    let port = fixture.backends[0].link();
    let lines = (0..FLOOD).map(|number| format!("fdb add {} dev {port} master dynamic\n", address(number)));
    batch(&fixture, "bridge", &lines.collect::<String>());
    let flooded = busy(&agent);
    assert!(
        flooded <= 3 * quiet + Duration::from_millis(60),
        "in {TWO_TURNS:?}: {quiet:?} before, {flooded:?} with {FLOOD} addresses"
    );
    let late = fixture.pod("late");
    warm(late.netns(), &fixture, &agent);
}

#[test]
fn a_bridge_with_too_many_neighbours_takes_the_stack_and_is_named() {
    let fixture = Fixture::new("neighbours", Pods::Bridged, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    warm(fixture.client.netns(), &fixture, &agent);
    let change = |verb: &str| {
        let line = |number: u32| {
            let [.., high, low] = number.to_be_bytes();
            format!("neighbour {verb} 10.250.{high}.{low} dev {BRIDGE} lladdr {} nud permanent\n", address(number))
        };
        batch(&fixture, "ip", &(0..NEIGHBOURS).map(line).collect::<String>());
    };
    change("add");
    let told = eventually("the bridge is closed", SWITCH, || {
        let told = fast_path(&agent);
        told["closedBridges"].as_array().is_some_and(|closed| !closed.is_empty()).then_some(told)
    });
    assert!(told["closedBridges"].to_string().contains(BRIDGE), "{told}");
    assert_eq!(
        (&told["open"], told["skips"].to_string()),
        (&Value::Bool(true), "[]".to_owned()),
        "nothing else is closed"
    );
    let text = agent.cli(&["status"]).unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains(&format!("not on {BRIDGE}")), "{text:?}");
    let before = agent.counted(Outcome::FastPath).unwrap();
    for to in fixture.web().frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("by the stack").unwrap();
    }
    assert_eq!(agent.counted(Outcome::FastPath).unwrap(), before);
    change("del");
    eventually("the bridge is open", SWITCH, || {
        fast_path(&agent)["closedBridges"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    warm(fixture.client.netns(), &fixture, &agent);
}
