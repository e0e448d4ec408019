//! Other `--map-sizes` at a restart.

use aya::maps::MapInfo;
use lb_common::abi::map_name;

use super::{Scene, Side, is_long, killed, paused};

const LARGE: &[&str] = &["--map-sizes=flows4=65536,flows6=65536,half_open=65536"];
const SMALL: &[&str] = &[
    "--map-sizes=flows4=16384,flows6=16384,half_open=16384,udp_flows=16384,sockets=16384,slots=65536,backends=4096,services=4096",
];
/// Neither of both.
const MIDDLE: &[&str] = &["--map-sizes=flows4=32768,flows6=32768,half_open=32768,slots=131072"];

fn of(flags: &'static [&'static str]) -> Side {
    Side { flags, binary: None }
}

#[test]
fn other_map_sizes_take_effect_at_a_restart_and_end_no_connection() {
    let scene = Scene::new("othersizes");
    let mut agent = scene.agent(&of(LARGE));
    agent.restart().unwrap();
    let mut before = scene.settled("the first start");
    let traffic = scene.traffic();
    traffic.check("before");
    for (flags, flows4, backends4) in [(SMALL, 16_384, 4_096), (LARGE, 65_536, 262_144)] {
        agent.kill();
        std::mem::forget(agent); // The next one cleans up.
        agent = scene.agent(&of(flags));
        agent.restart().unwrap();
        let set = scene.settled(flags[0]);
        assert_ne!(set, before, "another set is in force");
        for (map, entries) in [(map_name::FLOWS4, flows4), (map_name::BACKENDS4, backends4)] {
            assert_eq!(MapInfo::from_pin(set.join(map)).unwrap().max_entries(), entries, "{map}");
        }
        traffic.check(flags[0]);
        let audit = agent.cli(&["audit", "--dry-run"]).unwrap();
        assert!(audit.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&audit.stdout));
        before = set;
    }
    let (held, new) = traffic.answers();
    println!("{held} answers to held connections, {new} new connections");
}

#[test]
fn an_agent_that_is_killed_between_two_sizes_loses_no_connection() {
    let sides = [of(LARGE), of(SMALL), of(MIDDLE)];
    // The third one in the long form only: see the limits in the manual.
    let sides = if is_long() { &sides[..] } else { &sides[..2] };
    killed::between("killedsizes", sides, &[0, 1, 2, 3, 4]);
}

#[test]
fn clients_go_on_at_each_write_of_an_agent_that_moves_their_connections() {
    paused::between("pausedsizes", &[of(LARGE), of(SMALL)]);
}

/// What does not fit is refused before anything is changed.
#[test]
fn tables_that_would_be_too_small_are_refused_and_the_larger_ones_serve_on() {
    let scene = Scene::new("toosmall");
    let mut agent = scene.agent(&of(LARGE));
    agent.restart().unwrap();
    let before = scene.settled("the first start");
    let traffic = scene.traffic();
    agent.kill();
    let output = scene.agent_kept(&of(&["--map-sizes=backends=4"])).run_to_end().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("backends4 would be too small") && said.contains("--map-sizes"), "{said}");
    assert_eq!(scene.settled("after the refusal"), before);
    traffic.check("after the refusal");
}
