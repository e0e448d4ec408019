//! An agent with too little memory, CPU or descriptors, or with a run folder that is full or cannot be written: packets go on, the
//! agent says what is wrong, and with enough of it everything converges.

use std::path::PathBuf;

use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::limits::Limited;
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{Addresses, NodeOptions};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// A node whose agent serves two backends, and a connection to one.
struct Scene {
    held: Stream,
    agent: Agent,
    service: Service,
    fixture: Fixture,
}

impl Scene {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 2, NodeOptions::default());
        let agent = Agent::prepare(&fixture.node, &[]).unwrap();
        Self::start(fixture, agent)
    }

    fn start(fixture: Fixture, mut agent: Agent) -> Self {
        let service = fixture.web();
        agent.write(&Manifest::of([service.clone()])).unwrap();
        agent.restart().unwrap();
        let held = Stream::connect(fixture.client.place(), service.frontends(Protocol::Tcp)[0]).unwrap();
        Self { held, agent, service, fixture }
    }

    /// Old and new connections, from a pod and from the node.
    fn check(&mut self) {
        self.held.ask("still").unwrap();
        for place in [self.fixture.client.place(), self.fixture.node.place()] {
            for to in self.service.frontends(Protocol::Tcp) {
                Stream::connect(place, to).unwrap().ask("new").unwrap();
            }
        }
    }

    /// The service, and another one with many backends that nobody asks.
    fn more(&self, backends: u16) -> Manifest {
        let endpoint = |index: u16| {
            let [high, low] = index.to_be_bytes();
            Endpoint::ready(Addresses {
                v4: [10, 245, high, low].into(),
                v6: format!("fd00:245::{index:x}").parse().unwrap(),
            })
        };
        Manifest::of([self.service.clone(), Service::standard("more", 20, (1..=backends).map(endpoint).collect())])
    }

    fn converges(&self, manifest: &Manifest) {
        eventually("the tables hold the manifest", SOON, || {
            (self.agent.states().ok()? == manifest.states()).then_some(())
        });
    }

    fn status(&self) -> String {
        let output = self.agent.cli(&["status"]).unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.agent.pid().unwrap().cast_signed()).unwrap()
    }

    /// At most so many; `None`: as many as it may have.
    fn limit_descriptors(&self, most: Option<u64>) {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: most.or(maximum), maximum };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap();
    }
}

#[test]
fn an_agent_that_is_killed_for_its_memory_costs_no_packet() {
    let mut scene = Scene::new("memory");
    let limited = Limited::memory(scene.agent.pid().unwrap(), 1 << 20).unwrap();
    let manifest = scene.more(2000);
    scene.agent.write(&manifest).unwrap();
    eventually("the kernel kills the agent", SOON, || (!scene.agent.alive()).then_some(()));
    scene.check();
    let status = scene.status();
    assert!(status.contains("not running"), "{status}");
    drop(limited);
    scene.agent.restart().unwrap();
    scene.converges(&manifest);
    scene.check();
}

#[test]
fn an_agent_without_cpu_costs_no_packet_and_makes_up_for_it() {
    let mut scene = Scene::new("cpu");
    let limited = Limited::cpu(scene.agent.pid().unwrap(), 1000).unwrap();
    let manifest = scene.more(50);
    scene.agent.write(&manifest).unwrap();
    scene.check();
    drop(limited);
    scene.converges(&manifest);
    // With no CPU at all.
    let pid = nix::unistd::Pid::from_raw(scene.pid().as_raw_pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let manifest = scene.more(60);
    scene.agent.write(&manifest).unwrap();
    scene.check();
    let status = scene.status();
    assert!(status.contains("did not give a report"), "{status}");
    kill(pid, Signal::SIGCONT).unwrap();
    scene.converges(&manifest);
    scene.check();
}

#[test]
fn an_agent_without_descriptors_says_so_and_costs_no_packet() {
    let mut scene = Scene::new("descriptors");
    // Those that are open stay. A new one gets the lowest free number, and those below this limit are taken from the start.
    scene.limit_descriptors(Some(3));
    let manifest = scene.more(5);
    scene.agent.write(&manifest).unwrap();
    eventually("the log names it", SOON, || scene.agent.log().contains("Too many open files").then_some(()));
    scene.check();
    scene.limit_descriptors(None);
    scene.converges(&manifest);
    scene.check();
}

#[test]
fn a_start_with_too_little_ends_with_its_reason_and_the_next_one_converges() {
    let mut scene = Scene::new("starts");
    scene.agent.kill();
    let manifest = scene.more(5);
    scene.agent.write(&manifest).unwrap();
    let mib = 1 << 20;
    for (resource, most, reason) in [(Resource::Nofile, 32, "Too many open files"), (Resource::As, 64 * mib, "memory")]
    {
        let before = scene.agent.log().len();
        scene.agent.launch_limited(resource, most).unwrap();
        eventually("the start ends", SOON, || (!scene.agent.alive()).then_some(()));
        let log = scene.agent.log()[before..].to_owned();
        assert!(log.contains(reason), "{log}");
        scene.check();
    }
    scene.agent.restart().unwrap();
    scene.converges(&manifest);
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
    let mut scene = Scene::start(fixture, agent);
    let full = run_dir.join("full");
    std::fs::write(&full, vec![0_u8; 1 << 17]).expect_err("the file system is smaller");
    // Tables need no files, orders do.
    let manifest = scene.more(5);
    scene.agent.apply(&manifest).unwrap();
    let output = scene.agent.cli(&["maintenance", "10.245.0.1", "on"]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("No space left"), "{said}");
    scene.check();
    // The next agent needs no more room than the one before.
    scene.agent.restart().unwrap();
    scene.converges(&manifest);
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
    let mut scene = Scene::start(fixture, agent);
    scene.agent.kill();
    let remount =
        |flags| mount(None::<&str>, &run_dir, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    remount(MsFlags::MS_RDONLY);
    let before = scene.agent.log().len();
    scene.agent.restart().unwrap();
    let log = scene.agent.log()[before..].to_owned();
    assert!(log.contains("Read-only") && log.contains("--run-dir"), "{log}");
    let manifest = scene.more(5);
    scene.agent.write(&manifest).unwrap();
    scene.converges(&manifest);
    scene.check();
    let running = format!("running, pid {}", scene.agent.pid().unwrap());
    assert!(!scene.status().contains(&running), "there is no socket");
    remount(MsFlags::empty());
    eventually("the agent answers `status`", SOON, || scene.status().contains(&running).then_some(()));
    scene.check();
}
