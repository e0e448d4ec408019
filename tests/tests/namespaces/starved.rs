//! An agent with too little memory, CPU or descriptors, or with a run folder that is full or cannot be written. Packets go on, the agent says what is
//! wrong, and with enough of it everything converges.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use lb_tests::agent::{Agent, Endpoint, Manifest, SOON, Service};
use lb_tests::fixture::{Fixture, Pods, Served, health_check_port};
use lb_tests::limits::Limited;
use lb_tests::peers::eventually;
use lb_tests::topology::{Addresses, NodeOptions};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// The service, and another one with many backends that nobody asks.
fn more(scene: &Served, backends: u16) -> Manifest {
    let endpoint = |index: u16| {
        let [high, low] = index.to_be_bytes();
        Endpoint::ready(Addresses {
            v4: [10, 245, high, low].into(),
            v6: format!("fd00:245::{index:x}").parse().unwrap(),
        })
    };
    Manifest::of([scene.service.clone(), Service::standard("more", 20, (1..=backends).map(endpoint).collect())])
}

fn converges(agent: &Agent, manifest: &Manifest) {
    eventually("the tables hold the manifest", SOON, || (agent.states().ok()? == manifest.states()).then_some(()));
}

fn status(agent: &Agent) -> String {
    let output = agent.cli(&["status"]).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn pid(agent: &Agent) -> Pid {
    Pid::from_raw(agent.pid().unwrap().cast_signed()).unwrap()
}

/// At most so many; `None`: as many as it may have.
fn limit_descriptors(agent: &Agent, most: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: most.or(maximum), maximum };
    prlimit(Some(pid(agent)), Resource::Nofile, limit).unwrap();
}

#[test]
fn an_agent_that_is_killed_for_its_memory_costs_no_packet() {
    let mut scene = Served::new("memory", 2);
    let limited = Limited::memory(scene.agent.pid().unwrap(), 1 << 20).unwrap();
    let manifest = more(&scene, 2000);
    scene.agent.write(&manifest).unwrap();
    eventually("the kernel kills the agent", SOON, || (!scene.agent.alive()).then_some(()));
    scene.check();
    let status = status(&scene.agent);
    assert!(status.contains("not running"), "{status}");
    drop(limited);
    scene.agent.restart().unwrap();
    converges(&scene.agent, &manifest);
    scene.check();
}

#[test]
fn an_agent_without_cpu_costs_no_packet_and_makes_up_for_it() {
    let mut scene = Served::new("cpu", 2);
    let limited = Limited::cpu(scene.agent.pid().unwrap(), 1000).unwrap();
    let manifest = more(&scene, 50);
    scene.agent.write(&manifest).unwrap();
    scene.check();
    drop(limited);
    converges(&scene.agent, &manifest);
    // With no CPU at all.
    let pid = nix::unistd::Pid::from_raw(pid(&scene.agent).as_raw_pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let manifest = more(&scene, 60);
    scene.agent.write(&manifest).unwrap();
    scene.check();
    let status = status(&scene.agent);
    assert!(status.contains("did not give a report"), "{status}");
    kill(pid, Signal::SIGCONT).unwrap();
    converges(&scene.agent, &manifest);
    scene.check();
}

#[test]
fn an_agent_without_descriptors_says_so_and_costs_no_packet() {
    let mut scene = Served::new("descriptors", 2);
    // Those that are open stay. A new one gets the lowest free number, and those below this limit are taken from the start.
    limit_descriptors(&scene.agent, Some(3));
    let manifest = more(&scene, 5);
    scene.agent.write(&manifest).unwrap();
    eventually("the log names it", SOON, || scene.agent.log().contains("Too many open files").then_some(()));
    scene.check();
    limit_descriptors(&scene.agent, None);
    converges(&scene.agent, &manifest);
    scene.check();
}

/// The first of [`LOCAL_SERVICES`] health-check node ports.
const FIRST_PORT: u16 = 31_000;
/// Two listeners for each are more than [`FEW_DESCRIPTORS`].
const LOCAL_SERVICES: u16 = 600;
/// systemd's limit, here the hard one, too.
const FEW_DESCRIPTORS: u64 = 1_024;

/// Health-check node ports that are refused for want of descriptors; `None`: not all are decided.
fn refused_ports(agent: &Agent) -> Option<BTreeSet<u16>> {
    let status = agent.json(&["status"]).ok()?;
    let checks = status["agent"]["tables"]["healthChecks"].as_object()?.clone();
    let is_refused = |check: &serde_json::Value| {
        let name = check["service"].as_str()?;
        let problem = check["problem"].as_str()?;
        (problem.contains(&format!("Service {name} is refused")) && problem.contains("RLIMIT_NOFILE")).then_some(())
    };
    let refused = checks.iter().filter(|(_, check)| is_refused(check).is_some());
    let refused: BTreeSet<u16> = refused.map(|(port, _)| port.parse().unwrap()).collect();
    (checks.len() == usize::from(LOCAL_SERVICES) && !refused.is_empty()).then_some(refused)
}

#[test]
fn more_health_check_node_ports_than_descriptors_cost_the_same_services_at_each_start_and_nothing_else() {
    let mut scene = Served::new("manyports", 2);
    let manifest = Manifest::of([scene.service.clone()]).yaml();
    scene.agent.write_text(&(manifest + &health_check_port::many(FIRST_PORT, LOCAL_SERVICES))).unwrap();
    let address = std::net::IpAddr::from(scene.fixture.node.addresses().v4);
    let mut before = None;
    // The second start opens what the first one wrote down.
    for start in ["first", "second"] {
        scene.agent.launch_limited(Resource::Nofile, FEW_DESCRIPTORS).unwrap();
        let refused = eventually("each port is open or refused", SOON, || refused_ports(&scene.agent));
        let is_closed = |port: &u16| TcpStream::connect_timeout(&SocketAddr::new(address, *port), SOON).is_err();
        let ports = FIRST_PORT..FIRST_PORT + LOCAL_SERVICES;
        let closed: BTreeSet<u16> = scene.fixture.node.netns().run(|| ports.filter(is_closed).collect());
        assert_eq!(closed, refused, "at the {start} start");
        eventually("the agent is ready", SOON, || scene.agent.is_ready().then_some(()));
        let metrics = scene.agent.metrics().unwrap();
        let counted = format!("ballast_health_check_problems {}", refused.len());
        assert!(metrics.lines().any(|line| line.trim_end_matches(".0") == counted), "{counted} at the {start} start");
        let log = scene.agent.log();
        assert!(refused.iter().all(|port| log.contains(&format!("healthCheckNodePort {port} of Service"))));
        scene.check();
        assert_eq!(*before.get_or_insert_with(|| refused.clone()), refused, "at the {start} start");
    }
}

/// Bytes of address space that a process's own binary takes.
fn mapped_by_binary(pid: u32) -> u64 {
    let binary = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let own = maps.lines().filter(|line| line.ends_with(binary.to_str().unwrap()));
    let size = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
    };
    own.map(|line| size(line).unwrap()).sum()
}

#[test]
fn a_start_with_too_little_ends_with_its_reason_and_the_next_one_converges() {
    let mut scene = Served::new("starts", 2);
    // An unoptimised binary is large. With so much more its threads start, and its maps find no room: 8 to 20 MiB give the same.
    let little = mapped_by_binary(scene.agent.pid().unwrap()) + (12 << 20);
    scene.agent.kill();
    let manifest = more(&scene, 5);
    scene.agent.write(&manifest).unwrap();
    for (resource, most, reason) in [(Resource::Nofile, 32, "Too many open files"), (Resource::As, little, "memory")] {
        let before = scene.agent.log().len();
        scene.agent.launch_limited(resource, most).unwrap();
        eventually("the start ends", SOON, || (!scene.agent.alive()).then_some(()));
        let log = scene.agent.log()[before..].to_owned();
        assert!(log.contains(reason), "{log}");
        scene.check();
    }
    scene.agent.restart().unwrap();
    converges(&scene.agent, &manifest);
    scene.check();
}

/// A run folder on a small file system of its own.
fn small_run_dir(fixture: &Fixture) -> PathBuf {
    let run_dir = fixture.node.run_dir().join("small");
    std::fs::create_dir(&run_dir).unwrap();
    mount(Some("tmpfs"), &run_dir, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    run_dir
}

#[test]
fn a_full_run_folder_costs_orders_but_no_start_and_no_packet() {
    let fixture = Fixture::new("fullrun", Pods::Routed, 2, NodeOptions::default());
    let run_dir = small_run_dir(&fixture);
    let agent = Agent::prepare_in(&fixture.node, &run_dir, &[]).unwrap();
    let mut scene = Served::start(fixture, agent);
    let full = run_dir.join("full");
    std::fs::write(&full, vec![0_u8; 1 << 17]).expect_err("the file system is smaller");
    // Tables need no files, orders do.
    let manifest = more(&scene, 5);
    scene.agent.apply(&manifest).unwrap();
    let output = scene.agent.cli(&["maintenance", "10.245.0.1", "on"]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("No space left"), "{said}");
    scene.check();
    // The next agent needs no more room than the one before.
    scene.agent.restart().unwrap();
    converges(&scene.agent, &manifest);
    scene.check();
    std::fs::remove_file(full).unwrap();
    let output = scene.agent.cli(&["maintenance", "10.245.0.1", "on"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    scene.check();
}

#[test]
fn a_run_folder_that_cannot_be_written_costs_status_but_no_start_and_no_packet() {
    let fixture = Fixture::new("readonly", Pods::Routed, 2, NodeOptions::default());
    let run_dir = small_run_dir(&fixture);
    let agent = Agent::prepare_in(&fixture.node, &run_dir, &[]).unwrap();
    let mut scene = Served::start(fixture, agent);
    scene.agent.kill();
    let remount =
        |flags| mount(None::<&str>, &run_dir, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    remount(MsFlags::MS_RDONLY);
    let before = scene.agent.log().len();
    scene.agent.restart().unwrap();
    let log = scene.agent.log()[before..].to_owned();
    assert!(log.contains("Read-only") && log.contains("--run-dir"), "{log}");
    let manifest = more(&scene, 5);
    scene.agent.write(&manifest).unwrap();
    converges(&scene.agent, &manifest);
    scene.check();
    let pid = scene.agent.pid().unwrap();
    let running = format!("running, pid {pid}");
    // There is no socket, and no lie about it either.
    let shown = status(&scene.agent);
    let known = shown.contains("running, no report") && shown.contains(&format!("(pid {pid})"));
    assert!(known && !shown.contains("no agent is running") && shown.contains("revision"), "{shown}");
    remount(MsFlags::empty());
    eventually("the agent answers `status`", SOON, || status(&scene.agent).contains(&running).then_some(()));
    scene.check();
}
