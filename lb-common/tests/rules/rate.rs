//! Rate limits over plain tables: whose new flows they count, how many pass, and what they leave alone.

use lb_common::abi::{BucketKey, FlowKey, Masquerade, Service, ServiceKey, UDP, frontend_kind, network_flags};
use lb_common::decide::{Hook, Pace, Tables};
use lb_common::limits::RATE_MAX;
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};

const NODE: [u8; 4] = [192, 0, 2, 1];
const RATE: u32 = 2;
const BURST: u32 = 5;

/// A node port with a rate limit, and one without.
fn serving() -> Memory {
    let mut tables = Memory { own: Some(Masquerade::new(NODE, &[])), ..Memory::default() };
    for (id, port, rate) in [(1, 30_053, RATE), (2, 30_054, 0)] {
        let frontend = ServiceKey { address: NODE, port, protocol: UDP, pad: 0 };
        tables.serve(id, 8 * id, frontend, &[[10, 0, 1, 11]], 5353);
        tables.edit(frontend, |service| {
            *service = Service { kind: frontend_kind::NODE_PORT, rate, burst: BURST, ..*service }
        });
    }
    tables.networks.push(([10, 0, 0, 0], 8, network_flags::PODS));
    tables
}

/// How many of 20 new flows pass.
fn passing(tables: &mut Memory, from: [u8; 4], to: u16, hook: Hook) -> usize {
    let pass = |(tables, base): (&mut Memory, u16), number: u16| {
        let key = tuple(UDP, (from, base + number), (NODE, to));
        let verdict = tables.ask(key, 0, hook);
        assert_eq!(verdict.service, if to == 30_053 { 1 } else { 2 });
        verdict.outcome != Outcome::DroppedRateLimit
    };
    let base = 1_000 + u16::try_from(tables.half_open.len()).unwrap() * 32;
    (0..20).filter(|number| pass((tables, base), *number)).count()
}

#[test]
fn each_network_outside_has_its_burst_and_then_its_rate() {
    for hook in [Hook::XDP, Hook::NODE_IN] {
        let mut tables = serving();
        assert_eq!(passing(&mut tables, [198, 51, 100, 7], 30_053, hook), 5);
        assert_eq!(passing(&mut tables, [198, 51, 100, 200], 30_053, hook), 0, "the same network");
        assert_eq!(passing(&mut tables, [198, 51, 101, 7], 30_053, hook), 5, "another one");
        tables.pass_seconds(1);
        assert_eq!(passing(&mut tables, [198, 51, 100, 8], 30_053, hook), 2);
        tables.pass_seconds(3_600);
        assert_eq!(passing(&mut tables, [198, 51, 100, 9], 30_053, hook), 5, "no more than the burst is saved up");
        assert_eq!(passing(&mut tables, [198, 51, 100, 10], 30_054, hook), 20, "a service without a limit");
    }
}

#[test]
fn pods_and_known_flows_are_not_limited() {
    let mut tables = serving();
    assert_eq!(passing(&mut tables, [10, 0, 2, 9], 30_053, Hook::XDP), 20, "of another node");
    assert_eq!(passing(&mut tables, [10, 0, 1, 9], 30_053, Hook::POD_IN), 20, "of this node");
    let key = tuple(UDP, ([198, 51, 100, 7], 999), (NODE, 30_053));
    for _ in 0..100 {
        assert_ne!(tables.ask(key, 0, Hook::XDP).outcome, Outcome::DroppedRateLimit, "one flow");
    }
    assert_eq!(passing(&mut tables, [198, 51, 100, 7], 30_053, Hook::XDP), 4, "which was one");
}

#[test]
fn a_flow_that_moves_is_no_new_one() {
    let mut tables = serving();
    assert_eq!(passing(&mut tables, [198, 51, 100, 7], 30_053, Hook::XDP), 5);
    let known = tuple(UDP, ([198, 51, 100, 7], 1_000), (NODE, 30_053));
    // Its backend has become another one.
    tables.backends.values_mut().for_each(|backend| backend.generation += 1);
    let generation = tables.backends.values().next().unwrap().generation;
    tables.slots.values_mut().for_each(|slot| slot.backend_generation = generation);
    assert_eq!(tables.ask(known, 0, Hook::XDP).outcome, Outcome::Moved);
    assert_eq!(tables.ask(FlowKey { src_port: 999, ..known }, 0, Hook::XDP).outcome, Outcome::DroppedRateLimit);
}

#[test]
fn another_limit_counts_from_the_moment_it_is_set() {
    let mut tables = Memory::<4>::empty();
    tables.now_ns = 1_000_000_000_000;
    let key = BucketKey { service: 1, family: 4, network: [0; 8] };
    let taken = |tables: &mut Memory<4>, rate, burst| {
        let pace = Pace::of(&Service { rate, burst, ..Service::NONE });
        (0..50).filter(|_| <Memory<4> as Tables<4>>::take(tables, &key, pace)).count()
    };
    assert_eq!(taken(&mut tables, 1, 40), 40);
    assert_eq!(taken(&mut tables, 1_000, 10), 10, "it is not made to wait for what the limit before had lent");
    assert_eq!(taken(&mut tables, 1_000, 10), 0);
    // A CPU that read the clock a little earlier than the one that took the last flow is given no burst.
    tables.now_ns -= 1_000;
    assert_eq!(taken(&mut tables, 1_000, 10), 0);
}

#[test]
fn no_limit_is_so_large_or_small_that_numbers_run_over() {
    let mut tables = Memory::empty();
    tables.now_ns = u64::MAX / 2;
    for (rate, burst) in [(1, RATE_MAX), (RATE_MAX, 1), (RATE_MAX, RATE_MAX), (1, 1)] {
        let pace = Pace::of(&Service { rate, burst, ..Service::NONE });
        let key = BucketKey { service: rate, family: burst, network: [0; 8] };
        let taken = (0..=burst.min(1_000)).filter(|_| <Memory as Tables<4>>::take(&mut tables, &key, pace));
        assert_eq!(taken.count(), burst.min(1_001) as usize, "{rate}/{burst}");
    }
}
