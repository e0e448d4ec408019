//! Traffic does not notice whether an agent runs: killed, stopped, started again, upgraded, told nonsense.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{Addresses, Families, NodeOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[test]
fn traffic_flows_while_no_agent_runs_and_a_new_one_takes_over() {
    let all =
        [("auto", Families::Both), ("clsact", Families::Ipv6), ("clsact", Families::Both), ("auto", Families::Ipv6)];
    for (attach, families) in all.into_iter().take(lb_seed::short_or_long(2, 4)) {
        let fixture = Fixture::of(families, "life", 2);
        let service = fixture.web();
        let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--tc-attach", attach]);
        let mut old: Vec<Stream> = service
            .frontends(Protocol::Tcp)
            .into_iter()
            .flat_map(|to| {
                [fixture.client.netns(), fixture.node.netns()].map(|netns| Stream::connect(netns, to).unwrap())
            })
            .collect();
        let servers: Vec<String> = old.iter_mut().map(|stream| stream.ask("one").unwrap().server).collect();
        for round in 0..4 {
            if round % 2 == 0 {
                agent.kill();
            } else {
                agent.stop().unwrap();
            }
            for restarted in [false, true] {
                if restarted {
                    agent.restart().unwrap();
                }
                for (stream, server) in old.iter_mut().zip(&servers) {
                    assert_eq!(&stream.ask("again").unwrap().server, server, "no connection moves");
                }
                for netns in [fixture.client.netns(), fixture.node.netns()] {
                    for to in service.frontends(Protocol::Tcp) {
                        Stream::connect(netns, to).unwrap().ask("new").unwrap();
                    }
                    for to in service.frontends(Protocol::Udp) {
                        Datagrams::connected(netns, 0, to).unwrap().ask("new").unwrap();
                    }
                }
            }
        }
        // A change made while no agent ran is found by the next one.
        agent.kill();
        agent.write(&Manifest::of([fixture.web_of(fixture.endpoints()[..1].to_vec())])).unwrap();
        agent.restart().unwrap();
        let to = service.frontends(Protocol::Tcp)[0];
        for _ in 0..20 {
            assert_eq!(Stream::connect(fixture.client.netns(), to).unwrap().ask("who").unwrap().server, "b0");
        }
    }
}

#[test]
fn a_running_agent_is_asked_and_told_and_ended() {
    let fixture = Fixture::new("asked", Pods::Routed, 2, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    a_second_agent_on_the_node_is_refused_and_names_the_first(&fixture, &agent);
    who_may_not_look_is_told_so_instead_of_nothing(&fixture, &agent);
    the_metrics_have_the_agents_process(&mut agent);
    inspection_works_with_the_agent_dead(&fixture, &mut agent);
    agent.restart().unwrap();
    a_hangup_ends_no_agent_and_is_logged(&fixture, &mut agent);
}

fn a_hangup_ends_no_agent_and_is_logged(fixture: &Fixture, agent: &mut Agent) {
    let pid = Pid::from_raw(agent.pid().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    eventually("the log names the signal", SOON, || agent.log().contains("SIGHUP").then_some(()));
    assert!(agent.alive());
    assert_eq!(agent.json(&["status"]).unwrap()["agent"]["pid"], pid.as_raw());
    agent.stop().unwrap();
    assert!(!fixture.node.run_dir().join("agent.sock").exists(), "an agent that ends takes its socket away");
}

/// The agent reads its process with the rights of the container, too.
fn the_metrics_have_the_agents_process(agent: &mut Agent) {
    let value = |agent: &Agent, name: &str| agent.metric(name, "").unwrap_or_else(|| panic!("there is no {name}"));
    assert!(value(agent, "process_cpu_seconds_total") > 0.0);
    let (resident, virtual_memory) =
        (value(agent, "process_resident_memory_bytes"), value(agent, "process_virtual_memory_bytes"));
    assert!((1e6..1e9).contains(&resident) && resident < virtual_memory, "{resident} of {virtual_memory}");
    let (open, limit) = (value(agent, "process_open_fds"), value(agent, "process_max_fds"));
    assert!(open > 10.0 && open < limit, "{open} of {limit}");
    let first = value(agent, "process_start_time_seconds");
    agent.restart().unwrap();
    let second = value(agent, "process_start_time_seconds");
    assert!(second > first && second < first + 600.0, "{first}, then {second}");
}

#[test]
fn connections_opened_under_a_kill_loop_all_succeed() {
    let fixture = Fixture::new("killed", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let netns = fixture.client.netns().clone();
    let frontends = service.frontends(Protocol::Tcp);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut asked = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for to in &frontends {
                    let answer = Stream::connect(&netns, *to).and_then(|mut stream| stream.ask("hello"));
                    answer.unwrap_or_else(|error| panic!("connection {asked} to {to}: {error}"));
                    asked += 1;
                }
            }
            asked
        });
        for _ in 0..5 {
            agent.kill();
            agent.restart().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        traffic.join().unwrap()
    });
    assert!(asked > 10);
}

#[test]
fn a_broken_manifest_changes_nothing_and_says_where() {
    let fixture = Fixture::new("broken", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let to = service.frontends(Protocol::Tcp)[0];
    agent.write_text("kind: Service\napiVersion: v1\nmetadata: {name: [}\n").unwrap();
    eventually("the error is reported", SOON, || {
        let status = String::from_utf8_lossy(&agent.cli(&["status"]).ok()?.stdout).into_owned();
        (status.contains("services.yaml") && status.contains('3')).then_some(())
    });
    Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
    assert_eq!(agent.states().unwrap(), Manifest::of([service.clone()]).states());
    // One bad service among good ones: refused by name, the others served.
    let text = Manifest::of([service]).yaml()
        + "---\n{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"bad\", \"namespace\": \"test\"}, \"spec\": {\"clusterIP\": \"not-an-address\", \"ports\": [{\"port\": 80}]}}\n";
    agent.write_text(&text).unwrap();
    eventually("the refusal names the service", SOON, || {
        let status = String::from_utf8_lossy(&agent.cli(&["status"]).ok()?.stdout).into_owned();
        (status.contains("test/bad") && agent.log().contains("refused: Service test/bad")).then_some(())
    });
    assert_eq!(agent.log().matches("refused: Service test/bad").count(), 1, "{}", agent.log());
    assert_eq!(agent.log().matches("in the tables").count(), 1, "a change that writes nothing is no news");
    Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
}

/// Only the agent before it knew what the object said. The tables still do.
#[test]
fn what_cannot_be_read_at_a_restart_is_served_as_the_tables_hold_it() {
    let fixture = Fixture::new("unread", Pods::Routed, 2, NodeOptions::default());
    let other = |last: u8| {
        let addresses = Addresses { v4: [10, 245, 0, last].into(), v6: format!("fd00:245::{last}").parse().unwrap() };
        Service::standard("other", 20, vec![Endpoint::ready(addresses)])
    };
    let web = fixture.web();
    let whole = |last| Manifest::of([web.clone(), other(last)]);
    let mut agent = fixture.agent(&whole(1), &[]);
    let connect = || -> Vec<Stream> {
        let frontends = web.frontends(Protocol::Tcp).into_iter();
        frontends.map(|to| Stream::connect(fixture.client.netns(), to).unwrap()).collect()
    };
    let mut old = connect();
    let broken = |last| {
        let mut documents = whole(last).documents();
        let is_web = |document: &&mut Value| document["kind"] == "Service" && document["metadata"]["name"] == "web";
        documents.iter_mut().filter(is_web).for_each(|document| document["spec"] = 5.into());
        documents.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
    };
    let mut live = |agent: &Agent, last| {
        eventually("all but what cannot be read is followed", SOON, || {
            let mut shown = agent.states().ok()?;
            shown.retain(|(_, _, state)| state != "draining" && state != "gone");
            (shown == whole(last).states()).then_some(())
        });
        for stream in old.iter_mut().chain(&mut connect()) {
            stream.ask("hello").unwrap();
        }
    };
    agent.write_text(&broken(1)).unwrap();
    for _ in 0..2 {
        agent.launch().unwrap();
        eventually("the refusal says how it is served", SOON, || {
            let status = String::from_utf8_lossy(&agent.cli(&["status"]).ok()?.stdout).into_owned();
            (status.contains("test/web") && status.contains("as the tables held it")).then_some(())
        });
        live(&agent, 1);
    }
    agent.write_text(&broken(2)).unwrap();
    live(&agent, 2);
    agent.write(&Manifest::of([other(2)])).unwrap();
    eventually("what is deleted goes", SOON, || {
        let shown = agent.states().ok()?;
        let is_served = |state: &str| state != "draining" && state != "gone";
        shown.iter().all(|(service, _, state)| !service.contains("web") || !is_served(state)).then_some(())
    });
}

fn a_second_agent_on_the_node_is_refused_and_names_the_first(fixture: &Fixture, agent: &Agent) {
    let mut second = Agent::prepare(&fixture.node, &[]).unwrap();
    let output = second.run_to_end().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&agent.pid().unwrap().to_string()), "{said}");
    std::mem::forget(second); // Its clean-up would take the first one's things.
    let to = fixture.web().frontends(Protocol::Tcp)[0];
    Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
}

#[test]
fn cleanup_of_other_folders_takes_nothing_from_a_running_agent() {
    let fixture = Fixture::new("elsewhere", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--tc-attach", "clsact"]);
    let other = tempfile::tempdir().unwrap();
    // No agent ran in this folder: a file of this name is somebody else's.
    let theirs = other.path().join("node.json");
    std::fs::write(&theirs, "{}").unwrap();
    let cleanup = |dry: &[&str]| {
        let mut command = std::process::Command::new(lb_tests::agent::binary().unwrap());
        command.arg("cleanup").args(dry);
        command
            .arg(format!("--bpffs={0}", other.path().display()))
            .arg(format!("--run-dir={0}", other.path().display()));
        fixture.node.netns().run(|| command.output()).unwrap()
    };
    for dry in [&["--dry-run"][..], &[]] {
        let output = cleanup(dry);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&agent.pid().unwrap().to_string()), "{said}");
    }
    let to = service.frontends(Protocol::Tcp)[0];
    Stream::connect(fixture.client.netns(), to).unwrap().ask("still served").unwrap();
    // With no agent alive nothing is hurt that the next one does not make again. Nothing was there but the filters.
    agent.kill();
    let said = String::from_utf8_lossy(&cleanup(&[]).stdout).into_owned();
    assert!(said.contains("filter") && !said.contains("file"), "{said}");
    assert_eq!(String::from_utf8_lossy(&cleanup(&["--dry-run"]).stdout), "nothing of ours is there\n");
    assert!(theirs.exists());
}

/// The other locks hold, so a second agent is kept out all the same.
#[test]
fn a_run_folder_that_is_a_file_stops_no_start_and_lets_no_second_agent_in() {
    let fixture = Fixture::new("rundir", Pods::Routed, 1, NodeOptions::default());
    let taken = fixture.node.run_dir().join("taken");
    std::fs::write(&taken, "").unwrap();
    let service = fixture.web();
    let mut agent = Agent::prepare_in(&fixture.node, &taken, &[]).unwrap();
    agent.write(&Manifest::of([service.clone()])).unwrap();
    agent.restart().unwrap();
    let log = agent.log();
    assert!(log.contains("taken") && log.contains("choose another --run-dir"), "{log}");
    let mut second = Agent::prepare(&fixture.node, &[]).unwrap();
    let output = second.run_to_end().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&agent.pid().unwrap().to_string()), "{said}");
    std::mem::forget(second); // Its clean-up would take the first one's things.
    Stream::connect(fixture.client.netns(), service.frontends(Protocol::Tcp)[0]).unwrap().ask("hello").unwrap();
}

#[test]
fn cleanup_removes_everything_and_says_so_beforehand() {
    let fixture = Fixture::new("cleanup", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let to = service.frontends(Protocol::Tcp)[0];
    let out = fixture.backends[0].addresses().v6.to_string();
    assert!(agent.cli(&["maintenance", &out, "on"]).unwrap().status.success());
    agent.kill();
    // What the test itself puts there is left out.
    let in_run_dir = || {
        let names = std::fs::read_dir(fixture.node.run_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name != "agent.log" && name != "manifest");
        names.sort();
        names
    };
    assert_eq!(in_run_dir(), ["agent.lock", "agent.sock", "maintenance"]);
    let dry = agent.cli(&["cleanup", "--dry-run"]).unwrap();
    assert!(dry.status.success());
    let said = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(["services4", "agent.sock", "maintenance"].iter().all(|name| said.contains(name)), "{said}");
    assert_eq!(in_run_dir().len(), 3);
    Stream::connect(fixture.client.netns(), to).unwrap().ask("still served").unwrap();
    for _ in 0..2 {
        assert!(agent.cli(&["cleanup"]).unwrap().status.success(), "idempotent");
        assert!(!agent.bpffs().join("ballast").exists());
        assert_eq!(in_run_dir(), [""; 0]);
        for netns in [fixture.client.netns(), fixture.node.netns()] {
            Stream::connect_from(netns, 0, to, Duration::from_millis(500)).expect_err("nothing of ours is left");
        }
    }
    agent.restart().unwrap();
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("served again, also what was in maintenance").unwrap();
    }
}

fn who_may_not_look_is_told_so_instead_of_nothing(fixture: &Fixture, agent: &Agent) {
    // Nobody may not read where the binary is built.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("ballast");
    std::fs::copy(lb_tests::agent::binary().unwrap(), &binary).unwrap();
    let mut command = std::process::Command::new(binary);
    command.arg("status").arg(format!("--bpffs={}", agent.bpffs().display())).uid(65534).gid(65534);
    let output = fixture.node.netns().run(|| command.output()).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("not known: ") && !said.contains("Attached:      nothing"), "{said}");
}

fn inspection_works_with_the_agent_dead(fixture: &Fixture, agent: &mut Agent) {
    let service = fixture.web();
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("hello").unwrap();
    agent.kill();
    assert_eq!(agent.states().unwrap(), Manifest::of([service]).states());
    let services = agent.json(&["get", "services", "-n", "test"]).unwrap();
    let item = services["items"].as_array().unwrap().iter().find(|item| item["protocol"] == "TCP").unwrap().clone();
    assert_eq!((item["name"].as_str(), item["namespace"].as_str()), (Some("web"), Some("test")), "{item}");
    assert_eq!(item["backends"].as_array().map(Vec::len), Some(4), "{item}");
    let connections = agent.json(&["get", "connections", "-A", "--state", "open"]).unwrap();
    assert_eq!(connections["items"].as_array().map(Vec::len), Some(1), "{connections}");
    let table = agent.cli(&["get", "services", "-A"]).unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("web"));
    let status = agent.cli(&["status"]).unwrap();
    assert!(
        String::from_utf8_lossy(&status.stdout).contains("not running"),
        "{}",
        String::from_utf8_lossy(&status.stdout)
    );
}
