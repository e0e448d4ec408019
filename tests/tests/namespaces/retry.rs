//! A connection that nobody answers gets around the backend that does not: each rule of retry and of ejection, segment by segment.
//!
//! Client and backends are raw sockets in pods, at addresses that no kernel answers for: what a test does not send is not sent.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use lb_common::limits::PROBE_INTERVAL_S;
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::incident::raw_tcp::{ACK, RST, RawTcp, SYN, Segment, lend};
use lb_tests::peers::eventually;
use lb_tests::topology::{Addresses, NodeOptions, Pod};

/// So long a test waits for nothing to arrive.
const QUIET: Duration = Duration::from_millis(250);
/// Initial sequence number of the clients, and of the backends.
const ISN: u32 = 1_000;
const BACKEND_ISN: u32 = 5_000;

/// The client and all backends by hand, on one node. Fields in the order in which they must end.
pub struct Hands {
    client: RawTcp,
    backends: RawTcp,
    agent: Agent,
    /// Of two clients.
    sources: [Addresses; 2],
    services: Vec<Service>,
    _pod: Pod,
    fixture: Fixture,
}

/// The service of each scene: its name, and how many backends it has, which no other one has.
const SERVICES: [(&str, u8); 9] = [
    ("retry", 6),
    ("answered", 4),
    ("late", 2),
    ("refuse", 2),
    ("blind", 2),
    ("ejected", 2),
    ("policy", 3),
    ("noretry", 4),
    ("second", 4),
];

impl Hands {
    pub fn new(options: NodeOptions) -> Self {
        let fixture = Fixture::new("retry", Pods::Routed, 0, options);
        let pod = fixture.pod("hands");
        let sources = lend(&fixture.node, &fixture.client, 100..102).unwrap();
        let sources = [sources[0], sources[1]];
        let mut first = 0;
        let services = SERVICES.into_iter().zip(10..).map(|((name, backends), last)| {
            let lent = lend(&fixture.node, &pod, first..first + backends).unwrap();
            first += backends;
            let endpoints = lent.into_iter().map(Endpoint::ready).collect();
            let service = Service { families: options.families, ..Service::standard(name, last, endpoints) };
            if name == "noretry" { service.annotated("retry", "off") } else { service }
        });
        let services: Vec<Service> = services.collect();
        let manifest = Manifest::of(services.clone());
        let agent = fixture.agent(&manifest, &[]);
        eventually("the tables hold the manifest", SOON, || (agent.states().ok()? == manifest.states()).then_some(()));
        let (client, backends) = (RawTcp::new(fixture.client.netns()).unwrap(), RawTcp::new(pod.netns()).unwrap());
        Self { client, backends, agent, sources, services, _pod: pod, fixture }
    }

    /// Silent backends and those that refuse are avoided, and one answer wins.
    pub fn get_around(&self) {
        a_syn_that_is_sent_again_goes_to_a_backend_not_yet_tried(&self.scene("retry"));
        the_first_answer_wins_and_a_later_one_is_refused_and_never_delivered(&self.scene("late"));
        a_refusal_is_suppressed_while_another_backend_may_take_it_and_passed_when_none_is_left(&self.scene("refuse"));
    }

    /// The scene whose service has this name.
    fn scene(&self, name: &str) -> Scenario<'_> {
        let service = self.services.iter().find(|service| service.name == name).unwrap();
        Scenario { hands: self, service }
    }
}

/// What happens to the clients of one service.
struct Scenario<'a> {
    hands: &'a Hands,
    service: &'a Service,
}

#[test]
fn what_nobody_answers_gets_around_the_backend_and_nothing_else_moves() {
    let hands = Hands::new(NodeOptions::default());
    hands.get_around();
    an_answered_connection_never_moves_however_often_its_syn_is_seen(&hands.scene("answered"));
    a_refusal_that_names_another_number_changes_nothing(&hands.scene("blind"));
    a_backend_that_answers_somebody_is_not_blamed_for_a_client_that_nobody_answers(&hands.scene("policy"));
    without_retry_a_connection_stays_where_it_is(&hands.scene("noretry"));
    a_second_connection_from_an_open_ones_port_moves_only_when_nobody_answers_it(&hands.scene("second"));
    what_one_client_has_met_keeps_it_away_and_a_second_client_ejects_the_backend_until_a_probe_is_answered(
        &hands.scene("ejected"),
    );
}

impl Scenario<'_> {
    /// The service in each family, and a port of the client that no test has used.
    fn each(&self, test: impl Fn(&Self, Segment)) {
        for to in self.service.frontends(Protocol::Tcp) {
            test(self, self.syn(to));
        }
    }

    /// A SYN of a new connection of the first client.
    fn syn(&self, to: SocketAddr) -> Segment {
        self.syn_of(0, to)
    }

    /// A SYN of a new connection of one of the two clients.
    fn syn_of(&self, client: usize, to: SocketAddr) -> Segment {
        static NEXT: AtomicU16 = AtomicU16::new(10_000);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        Segment::syn(SocketAddr::new(self.hands.sources[client].like(to.ip()), port), to, ISN)
    }

    /// Sends a SYN; returns it as a backend sees it.
    fn arrives(&self, syn: &Segment) -> Segment {
        let arrived = self.arrives_by_any_port(syn);
        assert_eq!(arrived.from, syn.from, "another connection's SYN arrived");
        arrived
    }

    /// Sends a SYN; returns it as a backend sees it. That of a second handshake has another source port.
    fn arrives_by_any_port(&self, syn: &Segment) -> Segment {
        self.hands.client.send(syn);
        let arrived =
            self.hands.backends.receive(SOON, |segment| segment.is(SYN) && segment.from.ip() == syn.from.ip());
        let arrived = arrived.unwrap_or_else(|| panic!("{syn:?} reached no backend"));
        assert_eq!(arrived.seq, syn.seq, "another connection's SYN arrived");
        arrived
    }

    /// The SYN arrives when the client's stack would send it again. Two within a second are one that the network has doubled.
    fn arrives_again(&self, syn: &Segment) -> Segment {
        std::thread::sleep(Duration::from_millis(1_100));
        self.arrives(syn)
    }

    /// The backend that a SYN reaches answers; the client gets the answer from the service.
    fn answered(&self, syn: &Segment, arrived: &Segment) -> Segment {
        self.hands.backends.send(&arrived.answer(SYN | ACK, BACKEND_ISN));
        let received =
            self.hands.client.receive(SOON, |segment| segment.to == syn.from).expect("the client gets an answer");
        assert!(received.is(SYN | ACK), "{received:?}");
        assert_eq!((received.from, received.ack), (syn.to, ISN + 1), "as by the service");
        received
    }

    fn client_hears_nothing(&self, of: &Segment) {
        let heard = self.hands.client.receive(QUIET, |segment| segment.to == of.from);
        assert_eq!(heard, None, "the client must not hear of this");
    }

    fn counters(&self) -> Counters {
        Counters::read(self.hands.fixture.node.bpffs()).unwrap()
    }

    fn counted(&self, before: &Counters, outcome: Outcome, times: u64) {
        let now = self.counters();
        assert_eq!(now.since(before, outcome), times, "{}; counted: {}", outcome.name(), now.line_since(before));
    }
}

fn a_syn_that_is_sent_again_goes_to_a_backend_not_yet_tried(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        let tried: Vec<IpAddr> = (0..6).map(|_| scenario.arrives_again(&syn).to.ip()).collect();
        let first: BTreeSet<IpAddr> = tried[..5].iter().copied().collect();
        assert_eq!(first.len(), 5, "each of the first five went to another backend: {tried:?}");
        scenario.counted(&before, Outcome::Retried, 5);
        scenario.counted(&before, Outcome::Selected, 1);
        scenario.client_hears_nothing(&syn);
    });
}

fn an_answered_connection_never_moves_however_often_its_syn_is_seen(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        let arrived = scenario.arrives(&syn);
        let received = scenario.answered(&syn, &arrived);
        for _ in 0..3 {
            assert_eq!(scenario.arrives_again(&syn).to, arrived.to, "the same SYN once more");
        }
        scenario.hands.client.send(&Segment { length: 10, ..received.answer(ACK, ISN + 1) });
        let data = scenario.hands.backends.receive(SOON, |segment| segment.length == 10).expect("the data arrives");
        assert_eq!(data.to, arrived.to);
        scenario.counted(&before, Outcome::Retried, 0);
    });
}

fn the_first_answer_wins_and_a_later_one_is_refused_and_never_delivered(scenario: &Scenario<'_>) {
    for is_slow in [true, false] {
        scenario.each(|scenario, syn| {
            let before = scenario.counters();
            let first = scenario.arrives(&syn);
            let second = scenario.arrives_again(&syn);
            assert_ne!(first.to, second.to, "the second SYN moved");
            let (winner, loser) = if is_slow { (&first, &second) } else { (&second, &first) };
            let received = scenario.answered(&syn, winner);
            for round in 0..2 {
                scenario.hands.backends.send(&loser.answer(SYN | ACK, BACKEND_ISN + 77));
                let is_refusal = |segment: &Segment| segment.to == loser.to && segment.flags & RST != 0;
                let refused = scenario.hands.backends.receive(SOON, is_refusal);
                let refused = refused.unwrap_or_else(|| panic!("round {round}: the late answer is not refused"));
                assert_eq!((refused.from, refused.to, refused.seq), (loser.from, loser.to, ISN + 1), "round {round}");
                scenario.client_hears_nothing(&syn);
            }
            // Nothing else of it comes as from the service either.
            scenario.hands.backends.send(&loser.answer(ACK, BACKEND_ISN + 78).with_data(5));
            let heard =
                scenario.hands.client.receive(QUIET, |segment| segment.to == syn.from && segment.from == syn.to);
            assert_eq!(heard, None, "data of a backend that has lost the connection");
            scenario.hands.client.send(&Segment { length: 10, ..received.answer(ACK, ISN + 1) });
            let data = scenario.hands.backends.receive(SOON, |segment| segment.length == 10).expect("the data arrives");
            assert_eq!(data.to, winner.to);
            scenario.counted(&before, Outcome::RefusedLate, 2);
            scenario.counted(&before, Outcome::Retried, 1);
        });
    }
}

fn a_refusal_is_suppressed_while_another_backend_may_take_it_and_passed_when_none_is_left(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        let first = scenario.arrives(&syn);
        scenario.hands.backends.send(&first.answer(RST | ACK, 0));
        scenario.client_hears_nothing(&syn);
        scenario.counted(&before, Outcome::SuppressedRefusal, 1);
        let second = scenario.arrives_again(&syn);
        assert_ne!(first.to, second.to, "the refused SYN goes to the other one");
        scenario.hands.backends.send(&second.answer(RST | ACK, 0));
        let received =
            scenario.hands.client.receive(SOON, |segment| segment.to == syn.from).expect("the client gets an answer");
        assert!(received.flags & RST != 0, "{received:?}");
        assert_eq!((received.from, received.ack), (syn.to, ISN + 1));
        scenario.counted(&before, Outcome::SuppressedRefusal, 1);
        scenario.counted(&before, Outcome::Ejected, 0);
        // The connection is forgotten: its port begins anew.
        scenario.arrives(&Segment { seq: ISN + 77, ..syn });
    });
}

fn a_refusal_that_names_another_number_changes_nothing(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        let first = scenario.arrives(&syn);
        let forged = Segment { ack: ISN + 900, ..first.answer(RST | ACK, 0) };
        scenario.hands.backends.send(&forged);
        scenario.hands.client.receive(QUIET, |segment| segment.to == syn.from);
        scenario.counted(&before, Outcome::SuppressedRefusal, 0);
        scenario.counted(&before, Outcome::Ejected, 0);
        scenario.answered(&syn, &first);
    });
}

fn what_one_client_has_met_keeps_it_away_and_a_second_client_ejects_the_backend_until_a_probe_is_answered(
    scenario: &Scenario<'_>,
) {
    // Both families at once: an ejected backend is probed after the interval, which is waited for.
    let frontends = scenario.service.frontends(Protocol::Tcp);
    let begun = scenario.counters();
    let silent: Vec<IpAddr> = frontends.iter().map(|to| meets_silence(scenario, 0, *to, None)).collect();
    for (to, silent) in frontends.iter().zip(&silent) {
        let sent_to = |client: usize| {
            (0..40).filter(|_| scenario.arrives(&scenario.syn_of(client, *to)).to.ip() == *silent).count()
        };
        assert_eq!(sent_to(0), 0, "this client has met it");
        assert!(sent_to(1) > 0, "this one has not");
    }
    scenario.counted(&begun, Outcome::Ejected, 0);
    for (to, silent) in frontends.iter().zip(&silent) {
        meets_silence(scenario, 1, *to, Some(*silent));
    }
    scenario.counted(&begun, Outcome::Ejected, 2);
    let start = Instant::now();
    let mut met = 0;
    for to in &frontends {
        for client in [0, 1] {
            for _ in 0..20 {
                met += usize::from(silent.contains(&scenario.arrives(&scenario.syn_of(client, *to)).to.ip()));
            }
        }
    }
    let intervals = start.elapsed().as_secs() / u64::from(PROBE_INTERVAL_S) + 1;
    let probes = scenario.counters().since(&begun, Outcome::Probed);
    assert_eq!(u64::try_from(met).unwrap(), probes, "whatever meets an ejected backend is a probe");
    assert!(probes <= 2 * intervals, "{probes} probes of two backends in {intervals} intervals");
    shown_as_ejected(scenario, &silent);
    for (to, silent) in frontends.iter().zip(&silent) {
        // A probe is answered: the backend is ejected no more, and shares the load again.
        eventually("a probe reaches it", SOON + Duration::from_secs(PROBE_INTERVAL_S.into()), || {
            let syn = scenario.syn(*to);
            let arrived = scenario.arrives(&syn);
            std::thread::sleep(Duration::from_millis(100));
            (arrived.to.ip() == *silent).then(|| scenario.answered(&syn, &arrived))
        });
        let shares = (0..60).filter(|_| scenario.arrives(&scenario.syn(*to)).to.ip() == *silent).count();
        assert!(shares >= 5, "{silent} takes connections again: {shares} of 60");
    }
    scenario.counted(&begun, Outcome::Cleared, 2);
}

/// A backend, this one if it is named, leaves a connection of the client unanswered, and the other one answers it. Returns the first.
fn meets_silence(scenario: &Scenario<'_>, client: usize, to: SocketAddr, silent: Option<IpAddr>) -> IpAddr {
    let syns = std::iter::repeat_with(|| scenario.syn_of(client, to)).map(|syn| (scenario.arrives(&syn), syn));
    let is_wanted = |(first, _): &(Segment, Segment)| silent.is_none_or(|silent| first.to.ip() == silent);
    let (first, syn) = syns.take(100).find(is_wanted).expect("one of a hundred goes there");
    let second = scenario.arrives_again(&syn);
    scenario.answered(&syn, &second);
    first.to.ip()
}

/// `get` shows which backend is ejected.
fn shown_as_ejected(scenario: &Scenario<'_>, ejections: &[IpAddr]) {
    let list = scenario.hands.agent.json(&["get", "backends", "-A"]).unwrap().to_string();
    assert!(list.contains("ejected"), "{ejections:?} are ejected: {list}");
    let metrics = scenario.hands.agent.metrics().unwrap();
    for outcome in [Outcome::Retried, Outcome::Ejected] {
        assert!(metrics.contains(outcome.name()), "no metric tells of {}", outcome.name());
    }
}

fn a_backend_that_answers_somebody_is_not_blamed_for_a_client_that_nobody_answers(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        // Cut off by a policy: no backend hears, or answers, this client.
        for _ in 0..4 {
            scenario.arrives_again(&syn);
        }
        scenario.counted(&before, Outcome::Ejected, 0);
    });
}

fn without_retry_a_connection_stays_where_it_is(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let before = scenario.counters();
        let first = scenario.arrives(&syn);
        for _ in 0..3 {
            assert_eq!(scenario.arrives_again(&syn).to, first.to);
        }
        scenario.hands.backends.send(&first.answer(RST | ACK, 0));
        let received = scenario
            .hands
            .client
            .receive(SOON, |segment| segment.to == syn.from)
            .expect("the refusal is passed at once");
        assert!(received.flags & RST != 0 && received.from == syn.to, "{received:?}");
        scenario.counted(&before, Outcome::Retried, 0);
        scenario.counted(&before, Outcome::SuppressedRefusal, 0);
    });
}

fn a_second_connection_from_an_open_ones_port_moves_only_when_nobody_answers_it(scenario: &Scenario<'_>) {
    scenario.each(|scenario, syn| {
        let arrived = scenario.arrives(&syn);
        let received = scenario.answered(&syn, &arrived);
        scenario.hands.client.send(&Segment { length: 10, ..received.answer(ACK, ISN + 1) });
        scenario.hands.backends.receive(SOON, |segment| segment.length == 10).expect("the data arrives");
        // The backend lost its memory of it: it would answer the first such SYN by a challenge. Here it is dead.
        let second = Segment { seq: ISN + 50_000, ..syn };
        assert_eq!(scenario.arrives(&second).to, arrived.to, "first: to the same backend");
        assert_eq!(scenario.arrives_again(&second).to, arrived.to, "second: still");
        let moves = (0..6).any(|_| {
            std::thread::sleep(Duration::from_millis(1_100));
            let begun = scenario.arrives_by_any_port(&second);
            begun.from != second.from && begun.to != arrived.to
        });
        assert!(moves, "unanswered, a second handshake goes to another backend");
    });
}
