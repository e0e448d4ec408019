//! The bpf file system hidden or another one, and no cgroup v2: a refusal with its remedy, and never a second program beside the
//! first.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods, Served};
use lb_tests::peers::Stream;
use lb_tests::topology::NodeOptions;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Old and new connections, and one program at each place.
fn check(scene: &mut Served, expected: &[String]) {
    scene.check();
    assert_eq!(programs(&scene.fixture), expected, "another program hangs beside the first");
}

/// Interface and place of each program of tc and XDP, and each program on the cgroup, whichever process holds its link.
fn programs(fixture: &Fixture) -> Vec<String> {
    let node = &fixture.node;
    let show = |arguments: &[&str]| {
        let output = node.netns().run(|| Command::new("bpftool").arg("-j").args(arguments).output()).unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let mut found = Vec::new();
    for part in show(&["net", "show"]).as_array().unwrap() {
        for kind in ["xdp", "tc"] {
            let all = part[kind].as_array().into_iter().flatten();
            found.extend(all.map(|one| format!("{} {} {}", one["devname"], one["kind"], one["name"])));
        }
    }
    let cgroup = show(&["cgroup", "show", &node.cgroup().display().to_string()]);
    let all = cgroup.as_array().into_iter().flatten();
    found.extend(all.map(|one| format!("cgroup {} {}", one["attach_type"], one["name"])));
    found.sort();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// Mounts a file system over the pins.
fn hide_pins(fixture: &Fixture, kind: &str) {
    mount(Some(kind), fixture.node.bpffs(), Some(kind), MsFlags::empty(), None::<&str>).unwrap();
}

fn show_pins(fixture: &Fixture) {
    umount2(fixture.node.bpffs(), MntFlags::empty()).unwrap();
}

/// What an agent that ended said, which must have refused.
fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[test]
fn an_agent_whose_pins_are_hidden_refuses_to_attach_a_second_time() {
    let mut scene = Served::new("hidden", 1);
    let before = programs(&scene.fixture);
    scene.agent.kill();
    for kind in ["tmpfs", "bpf"] {
        hide_pins(&scene.fixture, kind);
        let said = refusal(&scene.agent.run_to_end().unwrap());
        let bpffs = scene.fixture.node.bpffs().display().to_string();
        assert!(said.contains(&bpffs) && said.contains("umount"), "{kind}: {said}");
        check(&mut scene, &before);
        assert!(!scene.fixture.node.bpffs().join("ballast").exists(), "{kind}: something was left behind");
        show_pins(&scene.fixture);
    }
    scene.agent.restart().unwrap();
    check(&mut scene, &before);
}

#[test]
fn an_agent_with_another_bpf_file_system_refuses_and_names_what_hangs_there() {
    let mut scene = Served::new("otherbpffs", 1);
    let before = programs(&scene.fixture);
    scene.agent.kill();
    let other = scene.fixture.node.run_dir().join("bpf");
    std::fs::create_dir(&other).unwrap();
    mount(Some("bpf"), &other, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
    let said = refusal(&start_elsewhere(&scene.fixture, &["--bpffs", &other.display().to_string()], &[]));
    assert!(said.contains("--bpffs") && said.contains("node_") && said.contains("eth0"), "{said}");
    check(&mut scene, &before);
}

#[test]
fn pins_that_are_hidden_while_the_agent_runs_are_told_and_attached_no_second_time() {
    let mut scene = Served::new("hiddenlive", 1);
    let before = programs(&scene.fixture);
    hide_pins(&scene.fixture, "tmpfs");
    // An audit looks at every attachment, as each round does.
    scene.agent.cli(&["audit"]).unwrap();
    let status = scene.agent.cli(&["status"]).unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("hidden") && status.contains("umount"), "{status}\n{}", scene.agent.log());
    check(&mut scene, &before);
    show_pins(&scene.fixture);
    let audit = scene.agent.cli(&["audit"]).unwrap();
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
    check(&mut scene, &before);
}

/// A start in a mount namespace of its own, with these mounts taken off; the agent must not be the node's.
fn start_elsewhere(fixture: &Fixture, flags: &[&str], unmount: &[PathBuf]) -> Output {
    let run_dir = fixture.node.run_dir().join("elsewhere");
    std::fs::create_dir_all(&run_dir).unwrap();
    std::fs::write(run_dir.join("m.yaml"), "").unwrap();
    let mut command = Command::new(lb_tests::agent::binary().unwrap());
    command.args(["agent", "--metrics-bind=127.0.0.1:0", "--health-bind=127.0.0.1:0"]).args(flags);
    command.arg(format!("--source=file={}", run_dir.join("m.yaml").display()));
    command.arg(format!("--run-dir={}", run_dir.display()));
    if !flags.contains(&"--bpffs") {
        command.arg(format!("--bpffs={}", fixture.node.bpffs().display()));
    }
    in_own_mounts(&mut command, unmount);
    fixture.node.netns().run(|| command.output()).unwrap()
}

/// Has a command run in a mount namespace of its own, without these mounts.
fn in_own_mounts(command: &mut Command, unmount: &[PathBuf]) {
    let unmount = unmount.to_vec();
    // SAFETY: the paths are made before; between fork and exec there are system calls alone.
    unsafe {
        command.pre_exec(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&Path> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            for path in &unmount {
                umount2(path, MntFlags::MNT_DETACH)?;
            }
            Ok(())
        });
    }
}

/// Where the cgroup v2 hierarchy is mounted.
fn cgroup2_mounts() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields[2] == "cgroup2").map(|fields| PathBuf::from(fields[1])).collect()
}

#[test]
fn without_cgroup_v2_the_agent_names_the_way_out_which_serves_pods() {
    let fixture = Fixture::new("nocgroup2", Pods::Routed, 1, NodeOptions::default());
    let said = refusal(&start_elsewhere(&fixture, &[], &cgroup2_mounts()));
    assert!(
        said.contains("no cgroup v2") && said.contains("--cgroup-root") && said.contains("--socket-lb off"),
        "{said}"
    );
    let said = refusal(&start_elsewhere(&fixture, &["--cgroup-root", "/proc"], &[]));
    assert!(said.contains("/proc is not on a cgroup v2"), "{said}");
    assert!(!fixture.node.bpffs().join("ballast").exists(), "something was left behind");
    // The way out.
    let service = fixture.web();
    let _agent = fixture.agent(&Manifest::of([service.clone()]), &["--socket-lb=off"]);
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("served").unwrap();
    }
}

#[test]
fn a_bpf_file_system_that_would_vanish_with_the_agent_is_not_mounted() {
    let fixture = Fixture::new("nobpffs", Pods::Routed, 1, NodeOptions::default());
    let cgroup = fixture.node.cgroup().display().to_string();
    let missing = fixture.node.run_dir().join("missing").display().to_string();
    let empty = fixture.node.run_dir().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let empty = empty.display().to_string();
    for (bpffs, reason) in [(&missing, "no such folder"), (&empty, "would vanish")] {
        let said = refusal(&start_elsewhere(&fixture, &["--cgroup-root", &cgroup, "--bpffs", bpffs], &[]));
        assert!(said.contains(reason) && said.contains("mount -t bpf bpf"), "{said}");
    }
    assert!(std::fs::read_dir(&empty).unwrap().next().is_none());
}
