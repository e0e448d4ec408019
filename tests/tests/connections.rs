//! What `ballast get` shows of connections, with the agent alive or dead.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod stage;

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::peers::Stream;
use lb_tests::topology::NodeOptions;
use stage::{Pods, Stage};

#[test]
fn counters_are_switched_by_a_restart_that_breaks_no_connection() {
    let stage = Stage::new("counters", Pods::Routed, 1, NodeOptions::default());
    let service = stage.web();
    let mut agent = stage.agent(&Manifest::of([service.clone()]), &[]);
    let mut held: Vec<_> = service
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|to| Stream::connect(stage.client.place(), to).unwrap())
        .collect();
    for stream in &mut held {
        stream.ask("before").unwrap();
    }
    for switch in ["on", "off", "on"] {
        agent.kill();
        agent =
            stage.agent(&Manifest::of([service.clone()]), &["--flow-counters", switch, "--flow-timeouts", "open=2h"]);
        for stream in &mut held {
            stream.ask(switch).unwrap();
        }
    }
}
