//! A pod that reaches itself through its service: the answer comes, and each end sees the service's address as the other's.

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::NodeOptions;

#[test]
fn a_pod_reaches_itself_through_its_service() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("hairpin", pods, 1, NodeOptions::default());
        let service = fixture.web();
        let _agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        let own = fixture.backends[0].netns();
        for to in service.frontends(Protocol::Tcp) {
            for round in 0..3 {
                let mut stream = Stream::connect(own, to).unwrap_or_else(|e| panic!("{pods:?} {to}, {round}: {e}"));
                for text in ["hello", "again"] {
                    let answer = stream.ask(text).unwrap_or_else(|e| panic!("{pods:?} {to}: {e}"));
                    assert_eq!(answer.peer.ip(), to.ip(), "the backend sees the service, not itself");
                }
                assert_eq!(stream.peer().unwrap(), to);
            }
        }
        for to in service.frontends(Protocol::Udp) {
            for _ in 0..3 {
                let socket = Datagrams::unconnected(own, 0, to).unwrap();
                for text in ["hello", "again"] {
                    let answer = socket.ask_at(to, text).unwrap_or_else(|e| panic!("{pods:?} {to}: {e}"));
                    assert_eq!(answer.peer.ip(), to.ip(), "the backend sees the service, not itself");
                }
            }
        }
        // Others reach it as ever, and see themselves.
        for to in service.frontends(Protocol::Tcp) {
            let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
            assert_eq!(stream.ask("hello").unwrap().peer, stream.local().unwrap());
        }
    }
}
