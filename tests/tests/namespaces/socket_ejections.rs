//! Host processes get around a backend that the packets of pods have shown to be dead. A connected socket cannot be moved, so it is not sent there in
//! the first place.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually, mapped};
use lb_tests::topology::{NodeOptions, Pod};

/// Longer than any test takes: a pod that cannot connect has moved on by then, at the latest.
const LONG: Duration = Duration::from_mins(1);

/// The pod receives, and no word of it gets out: a silent death.
fn fall_silent(pod: &Pod, silent: bool) {
    let change = if silent { "add" } else { "del" };
    for family in ["-4", "-6"] {
        pod.namespace().ip_show(&[family, "rule", change, "pref", "1", "blackhole"]).unwrap();
    }
}

#[test]
fn a_backend_that_left_pods_unanswered_is_avoided_by_the_host() {
    let fixture = Fixture::new("hostejected", Pods::Routed, 3, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let other = fixture.pod("other");
    let (pod, host) = (fixture.client.netns(), fixture.node.netns());
    for to in service.frontends(Protocol::Tcp) {
        let before = agent.counted(Outcome::Ejected).unwrap();
        fall_silent(&fixture.backends[1], true);
        eventually("the connections of two pods show that the backend is dead", LONG, || {
            for pod in [pod, other.netns()] {
                Stream::connect_from(pod, 0, to, LONG).unwrap().ask("hello").unwrap();
            }
            (agent.counted(Outcome::Ejected).unwrap() > before).then_some(())
        });
        let mut used = BTreeSet::new();
        for to in [to, mapped(to)] {
            for _ in 0..20 {
                // Within the time in which one segment goes unanswered.
                let mut stream = Stream::connect_from(host, 0, to, Duration::from_secs(30)).unwrap();
                used.insert(stream.ask("hello").unwrap().server);
            }
        }
        assert!(!used.contains("b1"), "{used:?}");
        fall_silent(&fixture.backends[1], false);
        // A pod's probe finds out that it answers again; then the host goes there, too.
        eventually("the host uses it again", LONG, || {
            Stream::connect_from(pod, 0, to, LONG).unwrap().ask("hello").unwrap();
            (Stream::connect_from(host, 0, to, LONG).unwrap().ask("hello").unwrap().server == "b1").then_some(())
        });
    }
}
