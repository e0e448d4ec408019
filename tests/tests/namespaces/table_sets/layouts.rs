//! Two builds of the agent with different records: fields were added, widened, moved and removed.

use std::time::{Duration, Instant};

use lb_tests::programs;

use super::{Scene, Side, is_long, killed, paused};

fn builds() -> [Side; 2] {
    [
        Side::default(),
        Side { binary: Some(programs::edited_agent("layout", "another layout").unwrap()), ..Side::default() },
    ]
}

#[test]
fn another_layout_follows_and_goes_back_and_ends_no_connection() {
    let builds = builds();
    let scene = Scene::new("otherlayout");
    let mut agent = scene.agent(&builds[0]);
    agent.restart().unwrap();
    let mut before = scene.settled("the first start");
    let traffic = scene.traffic();
    traffic.check("before");
    for build in [&builds[1], &builds[0]] {
        agent.kill();
        std::mem::forget(agent); // The next one cleans up.
        agent = scene.agent(build);
        agent.restart().unwrap();
        let set = scene.settled(&format!("{build:?}"));
        let version =
            |set: &std::path::Path| set.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().to_owned();
        assert_ne!(version(&set), version(&before), "a set of another layout version is in force");
        traffic.check(&format!("{build:?}"));
        let audit = agent.cli(&["audit", "--dry-run"]).unwrap();
        assert!(audit.status.success(), "{build:?}: {}", String::from_utf8_lossy(&audit.stdout));
        before = set;
        let end = Instant::now() + if is_long() { Duration::from_mins(1) } else { Duration::ZERO };
        while Instant::now() < end {
            traffic.check(&format!("{build:?}, later"));
        }
    }
    let (held, new) = traffic.answers();
    println!("{held} answers to held connections, {new} new connections");
}

#[test]
fn clients_go_on_at_each_write_of_an_agent_that_moves_their_connections() {
    paused::between("pausedlayout", &builds());
}

#[test]
fn an_agent_that_is_killed_between_two_layouts_loses_no_connection() {
    killed::between("killedlayout", &builds(), &[1, 3]);
}
