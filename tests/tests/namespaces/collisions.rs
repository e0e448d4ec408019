//! One client port used twice towards the same backend: through two services, or through a service and directly. Whichever comes
//! first, and whether one is open while the other comes or only its entries are left, nothing is misdelivered.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::Protocol;
use lb_tests::fixture::{Pods, SharedBackend};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, fresh_port};
use lb_tests::topology::NetNs;

/// How often two ways take turns on one port.
const TURNS: usize = 12;

/// Each ordered pair of the three.
fn pairs(ways: [SocketAddr; 3]) -> Vec<[SocketAddr; 2]> {
    let all = ways.into_iter().flat_map(|one| ways.into_iter().map(move |two| [one, two]));
    all.filter(|[one, two]| one != two).collect()
}

fn connect(from: &NetNs, port: u16, to: SocketAddr, case: &str) -> Stream {
    Stream::connect_from(from, port, to, PATIENCE)
        .unwrap_or_else(|error| panic!("{case}, port {port} to {to}: {error}"))
}

/// As [`connect`], once the kernel lets go of the tuple: to it, both ways are one tuple, and a socket just closed may hold it for a
/// moment.
pub fn connect_when_free(from: &NetNs, port: u16, to: SocketAddr, case: &str) -> Stream {
    for _ in 0..250 {
        match Stream::connect_from(from, port, to, PATIENCE) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => std::thread::sleep(Duration::from_millis(20)),
            other => return other.unwrap_or_else(|error| panic!("{case}, port {port} to {to}: {error}")),
        }
    }
    panic!("{case}, port {port} to {to}: the tuple stays taken")
}

/// Asks, and checks that each side believes what it should.
fn talks(stream: &mut Stream, to: SocketAddr, case: &str) {
    let answer = stream.ask(case).unwrap_or_else(|error| panic!("{case}, {to}: {error}"));
    assert_eq!(stream.peer().unwrap(), to, "{case}");
    assert_eq!(answer.peer.ip(), stream.local().unwrap().ip(), "{case}, {to}: the backend sees the client's address");
}

#[test]
fn tcp_at_the_same_time() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let scenario = SharedBackend::new("colltcp", pods);
        for [one, two] in scenario.ways(Protocol::Tcp).into_iter().flat_map(pairs) {
            let case = format!("{pods:?}, {one} then {two}");
            let port = fresh_port();
            let mut first = connect(scenario.fixture.client.netns(), port, one, &case);
            talks(&mut first, one, &case);
            let mut second = connect(scenario.fixture.client.netns(), port, two, &case);
            for _ in 0..3 {
                talks(&mut second, two, &case);
                talks(&mut first, one, &case);
            }
            // Neither notices that the other one ends.
            first.reset().unwrap();
            talks(&mut second, two, &case);
            let mut again = connect(scenario.fixture.client.netns(), port, one, &case);
            talks(&mut again, one, &case);
            talks(&mut second, two, &case);
        }
    }
}

#[test]
fn tcp_all_three_at_the_same_time() {
    let scenario = SharedBackend::new("collthree", Pods::Routed);
    for ways in scenario.ways(Protocol::Tcp) {
        for turn in 0..3 {
            let port = fresh_port();
            let order = [ways[turn], ways[(turn + 1) % 3], ways[(turn + 2) % 3]];
            let case = format!("in the order {order:?}");
            let mut open: Vec<(Stream, SocketAddr)> =
                order.iter().map(|to| (connect(scenario.fixture.client.netns(), port, *to, &case), *to)).collect();
            for _ in 0..3 {
                for (stream, to) in &mut open {
                    talks(stream, *to, &case);
                }
            }
        }
    }
}

#[test]
fn tcp_one_after_the_other_over_stale_entries() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let scenario = SharedBackend::new("collseq", pods);
        for [one, two] in scenario.ways(Protocol::Tcp).into_iter().flat_map(pairs) {
            let port = fresh_port();
            for turn in 0..TURNS {
                let to = if turn % 2 == 0 { one } else { two };
                let case = format!("{pods:?}, turn {turn} of {one} and {two}");
                let mut stream = connect(scenario.fixture.client.netns(), port, to, &case);
                talks(&mut stream, to, &case);
                // A RST leaves nothing in TIME-WAIT at either end; entries of the programs are left.
                stream.reset().unwrap();
            }
        }
    }
}

#[test]
fn udp_one_after_the_other_and_by_turns() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let scenario = SharedBackend::new("colludp", pods);
        for [one, two] in scenario.ways(Protocol::Udp).into_iter().flat_map(pairs) {
            // One socket that speaks to both: the last one asked owns the answers.
            let port = fresh_port();
            let socket = Datagrams::unconnected(scenario.fixture.client.netns(), port, one).unwrap();
            for turn in 0..TURNS {
                let to = if turn % 3 == 0 { one } else { two };
                let answer = socket.ask_at(to, "turn");
                let answer =
                    answer.unwrap_or_else(|e| panic!("{pods:?}, turn {turn} of {one} and {two}, to {to}: {e}"));
                assert_eq!(answer.server, "b0");
            }
            drop(socket);
            // Another socket of the same port, which finds what the first has left.
            for to in [two, one] {
                let socket = Datagrams::connected(scenario.fixture.client.netns(), port, to).unwrap();
                for _ in 0..3 {
                    let answer = socket.ask("again");
                    let answer =
                        answer.unwrap_or_else(|e| panic!("{pods:?}, connected to {to} after {one}, {two}: {e}"));
                    assert_eq!(answer.server, "b0");
                }
            }
        }
    }
}

#[test]
fn processes_of_the_host_use_one_port_through_both_services_and_directly() {
    let scenario = SharedBackend::new("collhost", Pods::Routed);
    let host = scenario.fixture.node.netns();
    // TCP: the kernel itself refuses a second connection of the same tuple, for it knows the backend's address.
    for [one, two] in scenario.ways(Protocol::Tcp).into_iter().flat_map(pairs) {
        let port = fresh_port();
        for turn in 0..TURNS {
            let to = if turn % 2 == 0 { one } else { two };
            let case = format!("host, turn {turn} of {one} and {two}");
            let mut stream = connect_when_free(host, port, to, &case);
            assert_eq!(stream.peer().unwrap(), to, "{case}");
            stream.ask(&case).unwrap_or_else(|error| panic!("{case}: {error}"));
            stream.reset().unwrap();
        }
    }
    // UDP: one socket that speaks to all, by name, one answer at a time.
    for ways in scenario.ways(Protocol::Udp) {
        let socket = Datagrams::unconnected(host, fresh_port(), ways[0]).unwrap();
        for turn in 0..TURNS {
            let to = ways[turn % 3];
            let answer = socket.ask_at(to, "turn").unwrap_or_else(|e| panic!("host, turn {turn}, to {to}: {e}"));
            assert_eq!(answer.server, "b0");
        }
    }
}
