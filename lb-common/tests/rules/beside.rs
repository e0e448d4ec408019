//! Packets that concern a flow without being one of its own: later fragments, ICMP errors, contradicting headers, over plain tables.

use lb_common::abi::{
    FlowKey, ServiceKey, TCP, UDP, Vip, VipKey, backend_state, flow_state, half_open_flags, vip_flags,
};
use lb_common::decide::{
    Action, Hook, Packet, Verdict, Work, as_refusal, concerns, later_fragment, malformed, quoted, refused,
    stray_fragment,
};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, reply, tuple};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIP: [u8; 4] = [10, 96, 0, 10];
const BACKENDS: [[u8; 4]; 2] = [[10, 0, 1, 11], [10, 0, 1, 12]];
const PORT: u16 = 40_000;

fn frontend(protocol: u8) -> ServiceKey<4> {
    ServiceKey { address: VIP, port: 80, protocol, pad: 0 }
}

fn request(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, PORT), (VIP, 80))
}

fn answer(protocol: u8, sent: &Verdict<4>) -> FlowKey<4> {
    reply(protocol, sent)
}

/// A service of both protocols at an address that is no node's, and a datagram that began a flow at this hook.
fn asked(hook: Hook) -> (Memory, Verdict<4>) {
    let mut tables = Memory::default();
    tables.serve(1, 0, frontend(TCP), &BACKENDS, 8080);
    tables.serve(2, 10, frontend(UDP), &BACKENDS, 5353);
    tables.vips.insert(VipKey { address: VIP }, Vip { flags: vip_flags::REFUSE_UNSERVED });
    let sent = tables.ask(request(UDP), 0, hook);
    assert_eq!(sent.action, Action::ToBackend);
    (tables, sent)
}

fn work(key: FlowKey<4>) -> Work<4> {
    Work::new(Packet::new(key, 0))
}

/// What becomes of a later fragment of this tuple. The tables stay as they are.
fn fragment(tables: &mut Memory, key: FlowKey<4>, hook: Hook) -> Verdict<4> {
    let mut work = work(key);
    let before = (tables.flows.clone(), tables.half_open.clone());
    later_fragment(tables, &mut work, hook);
    assert_eq!((&tables.flows, &tables.half_open), (&before.0, &before.1), "it is no packet of the flow");
    work.verdict
}

fn what(verdict: &Verdict<4>) -> (Action, Outcome) {
    (verdict.action, verdict.outcome)
}

const FOLLOWED: Outcome = Outcome::FragmentFollowed;

#[test]
fn later_fragments_go_the_way_of_their_flow_answered_or_not() {
    for is_answered in [false, true] {
        let (mut tables, sent) = asked(Hook::POD_IN);
        if is_answered {
            assert_eq!(tables.ask(answer(UDP, &sent), 0, Hook::POD_OUT).outcome, Outcome::Replied);
            assert!(!tables.flows.is_empty());
        }
        let there = fragment(&mut tables, request(UDP), Hook::POD_IN);
        assert_eq!(what(&there), (Action::ToBackend, FOLLOWED));
        assert_eq!((there.address, there.port, there.route), (sent.address, sent.port, false));
        // What leaves by the wire is sent on from there.
        assert!(fragment(&mut tables, request(UDP), Hook::NODE_OUT).route);
        let back = fragment(&mut tables, answer(UDP, &sent), Hook::POD_OUT);
        assert_eq!(what(&back), (Action::ToClient, FOLLOWED));
        assert_eq!((back.address, back.port, back.client_port, back.route), (VIP, 80, PORT, false));
    }
}

#[test]
fn a_fragment_is_translated_at_the_hook_of_its_direction_alone() {
    let (mut tables, sent) = asked(Hook::POD_IN);
    let passes = (Action::Pass, Outcome::Fragment);
    assert_eq!(what(&fragment(&mut tables, request(UDP), Hook::POD_OUT)), passes, "a request at the hook of replies");
    assert_eq!(what(&fragment(&mut tables, answer(UDP, &sent), Hook::POD_IN)), passes, "a reply at that of requests");
    // The client's link has no program: its replies are translated and sent on where they are seen first.
    let (mut tables, sent) = asked(Hook::NODE_OUT);
    let early = fragment(&mut tables, answer(UDP, &sent), Hook::POD_IN);
    assert_eq!((what(&early), early.route, early.address), ((Action::ToClient, FOLLOWED), true, VIP));
}

/// Once translated, a packet of a service's connection looks like one of the direct connection beside it.
#[test]
fn an_error_about_a_direct_connection_is_translated_at_the_clients_own_link_alone() {
    let (mut tables, _) = asked(Hook::POD_IN);
    tables.serve(1, 0, frontend(TCP), &BACKENDS[..1], 8080);
    let sent = tables.ask(request(TCP), SYN, Hook::POD_IN);
    assert_eq!(tables.ask(answer(TCP, &sent), SYN | ACK, Hook::POD_OUT).outcome, Outcome::Replied);
    let direct = FlowKey { dst: BACKENDS[0], dst_port: 8080, ..request(TCP) };
    let translated = tables.ask(direct, SYN, Hook::POD_IN);
    assert_eq!(translated.outcome, Outcome::DirectTranslated);
    let own = fragment(&mut tables, direct, Hook::POD_IN);
    assert_eq!((what(&own), own.client_port), ((Action::ToBackend, FOLLOWED), translated.client_port));
    for hook in [Hook::NODE_OUT, Hook::BRIDGE_IN] {
        assert_eq!(what(&fragment(&mut tables, direct, hook)).0, Action::Pass, "the service's, translated");
    }
}

#[test]
fn fragments_of_no_flow_end_at_an_address_of_services_and_pass_elsewhere() {
    let (mut tables, sent) = asked(Hook::POD_IN);
    let other = FlowKey { src_port: 1, ..request(UDP) };
    let drops = (Action::Drop, Outcome::DroppedFragment);
    assert_eq!(what(&fragment(&mut tables, other, Hook::POD_IN)), drops);
    let elsewhere = FlowKey { dst: [8, 8, 8, 8], ..other };
    assert_eq!(what(&fragment(&mut tables, elsewhere, Hook::POD_IN)), (Action::Pass, Outcome::Fragment));
    for (key, expected) in [(other, drops), (elsewhere, (Action::Pass, Outcome::Fragment))] {
        let mut work = work(key);
        stray_fragment(&mut tables, &mut work);
        assert_eq!(what(&work.verdict), expected);
    }
    // Nobody remembers the flow.
    tables.pass_seconds(u64::from(limits::UDP_STREAM_TIMEOUT_S) + 1);
    assert_eq!(what(&fragment(&mut tables, request(UDP), Hook::POD_IN)), drops);
    assert_eq!(what(&fragment(&mut tables, answer(UDP, &sent), Hook::POD_OUT)), (Action::Pass, Outcome::Fragment));
}

#[test]
fn nothing_follows_a_flow_whose_backend_is_gone_or_that_was_evicted() {
    let evicted = (Action::Drop, Outcome::Evicted);
    for (why, change) in [
        (
            "gone",
            (|tables, id| tables.backends.get_mut(&id).unwrap().state = backend_state::GONE) as fn(&mut Memory, u32),
        ),
        ("another pod", |tables, id| tables.backends.get_mut(&id).unwrap().generation += 1),
        ("no record", |tables, id| _ = tables.backends.remove(&id)),
        ("evicted", |tables, _| tables.flows.values_mut().for_each(|flow| flow.state = flow_state::EVICTED)),
    ] {
        let (mut tables, sent) = asked(Hook::POD_IN);
        tables.ask(answer(UDP, &sent), 0, Hook::POD_OUT);
        change(&mut tables, sent.backend);
        let there = fragment(&mut tables, request(UDP), Hook::POD_IN);
        assert_eq!((what(&there), there.backend), (evicted, sent.backend), "{why}");
        assert_eq!(what(&fragment(&mut tables, answer(UDP, &sent), Hook::POD_OUT)), evicted, "{why}");
    }
}

#[test]
fn a_backend_that_lost_its_attempt_has_no_way_to_the_client() {
    for flag in [half_open_flags::LOST, half_open_flags::SECOND] {
        let (mut tables, sent) = asked(Hook::POD_IN);
        let back = answer(UDP, &sent);
        tables.half_open.get_mut(&back).unwrap().flags |= flag;
        assert_eq!(what(&fragment(&mut tables, back, Hook::POD_OUT)), (Action::Pass, Outcome::Fragment));
    }
}

#[test]
fn contradicting_headers_are_dropped_where_a_service_or_a_flow_is_concerned() {
    let (mut tables, sent) = asked(Hook::POD_IN);
    let mut becomes = |key: FlowKey<4>| {
        let mut work = work(key);
        malformed(&mut tables, &mut work);
        what(&work.verdict)
    };
    let drops = (Action::Drop, Outcome::DroppedMalformed);
    assert_eq!(becomes(FlowKey { src_port: 0, dst_port: 0, ..request(UDP) }), drops, "an address of services");
    assert_eq!(becomes(answer(UDP, &sent)), drops, "a flow's");
    let elsewhere = FlowKey { dst: [8, 8, 8, 8], ..request(UDP) };
    assert_eq!(becomes(elsewhere), (Action::Pass, Outcome::Passed));
    // A frontend at a node's own address.
    tables.vips.clear();
    assert!(concerns(&mut tables, &mut work(FlowKey { src_port: 1, ..request(UDP) })), "it may begin a flow");
    assert!(concerns(&mut tables, &mut work(answer(UDP, &sent))));
    assert!(!concerns(&mut tables, &mut work(FlowKey { src_port: 1, dst_port: 81, ..request(UDP) })));
    assert!(!concerns(&mut tables, &mut work(elsewhere)));
}

/// What becomes of an error that quotes a packet of the reversed tuple. It is no evidence against any backend.
fn told(tables: &mut Memory, key: FlowKey<4>, hook: Hook) -> Verdict<4> {
    let before = tables.health.clone();
    let mut work = work(key);
    quoted(tables, &mut work, hook);
    assert_eq!(tables.health, before);
    work.verdict
}

#[test]
fn an_error_is_translated_and_is_no_evidence() {
    let translated = (Action::ToClient, Outcome::IcmpTranslated);
    let (mut tables, sent) = asked(Hook::POD_IN);
    let verdict = told(&mut tables, answer(UDP, &sent), Hook::POD_OUT);
    assert_eq!(what(&verdict), translated);
    assert_eq!((verdict.address, verdict.port, verdict.client_port), (VIP, 80, PORT));
    // Of the client: it has gone.
    let verdict = told(&mut tables, request(UDP), Hook::POD_IN);
    assert_eq!(what(&verdict), (Action::ToBackend, Outcome::IcmpTranslated));
    // At a hook that translates no replies.
    let verdict = told(&mut tables, answer(UDP, &sent), Hook::POD_IN);
    assert_eq!(what(&verdict), (Action::Pass, Outcome::Passed));
    // An error about a connection that is answered is no refusal of it.
    let sent = tables.ask(request(TCP), SYN, Hook::POD_IN);
    tables.ask(answer(TCP, &sent), SYN | ACK, Hook::POD_OUT);
    tables.ask(request(TCP), ACK, Hook::POD_IN);
    assert_eq!(what(&told(&mut tables, answer(TCP, &sent), Hook::POD_OUT)), translated);
}

#[test]
fn a_refusal_of_a_first_segment_is_read_as_its_rst() {
    let mut work = work(request(TCP));
    as_refusal(&mut work, u32::MAX);
    assert_eq!((work.packet.tcp_flags, work.packet.ack), (RST | ACK, 0), "it acknowledges the SYN");
    for (action, holds) in
        [(Action::ToClient, true), (Action::Drop, true), (Action::Pass, false), (Action::Refuse, false)]
    {
        (work.verdict.action, work.verdict.outcome) = (action, Outcome::Replied);
        assert_eq!(refused(&mut work), holds, "{action:?}");
        let expected = if action == Action::ToClient { Outcome::IcmpTranslated } else { Outcome::Replied };
        assert_eq!(work.verdict.outcome, expected, "{action:?}");
    }
}
