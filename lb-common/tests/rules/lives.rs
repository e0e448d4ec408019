//! Whole lives of connections between two TCP ends, with loss, bursts of loss, reordering, aborts and half-closes: once both ends are closed, no entry
//! outlasts the timeout of a closing connection.

mod tcp;

use std::collections::BTreeMap;

use lb_common::abi::{Flow, FlowKey};
use lb_common::decide::{Action, Hook, Packet, Work, decide};
use lb_common::plain::Memory;
use lb_common::state::{expired, tcp_flag::RST};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::ends::Pair;
use tcp::{End, Ending, Plan, Wire};

/// Where a segment is: on the way from its end to the hook, or from there to the other end.
const STRETCHES: usize = 4;

/// So many segments of a stretch are lost in a row.
#[derive(Clone, Copy, Debug)]
struct Burst {
    stretch: usize,
    first: u32,
    count: u32,
}

#[derive(Clone, Debug)]
struct Life {
    /// The client's and the backend's.
    plans: [Plan; 2],
    isns: [u32; 2],
    seed: u64,
    /// In percent, of each stretch.
    loss: u64,
    late: u64,
    late_ms: u64,
    bursts: Vec<Burst>,
    /// After so many segments an entry gets the numbers of as many segments before: another CPU was slow to write them.
    stale: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A segment of this end comes to the end of its stretch.
    Arrives {
        from: usize,
        is_behind_hook: bool,
        segment: Wire,
    },
    /// Nothing came since this timer was set.
    Silence {
        end: usize,
        timer: u32,
    },
    Delayed {
        end: usize,
    },
}

/// The network loses and delays nothing any more.
const CALM_MS: u64 = 20_000;
/// An end that has heard nothing for so long probes (`net.ipv4.tcp_keepalive_time`).
const IDLE_MS: u64 = 7_200_000;
const PROBES: u32 = 3;

struct World {
    life: Life,
    pair: Pair,
    ends: [End; 2],
    timers: [u32; 2],
    queue: BTreeMap<(u64, u64), Event>,
    serial: u64,
    now_ms: u64,
    counts: [u32; STRETCHES],
    old: Vec<(bool, u32, u32)>,
    /// Begin and length of each end's segments that no hook has seen.
    unseen: [Vec<(u32, u32)>; 2],
    /// A RST without an acknowledgement answered a segment that lies behind a double gap: nothing shows that its number is right.
    is_cut_short: bool,
    dice: u64,
}

impl World {
    fn new(life: Life) -> Self {
        let pair = Pair::of(life.isns);
        let [client, backend] = life.isns;
        let ends = [End::new(life.plans[0], client, backend), End::new(life.plans[1], backend, client)];
        let dice = life.seed;
        Self {
            life,
            pair,
            ends,
            timers: [0; 2],
            queue: BTreeMap::new(),
            serial: 0,
            now_ms: 0,
            counts: [0; STRETCHES],
            old: Vec::new(),
            unseen: Default::default(),
            is_cut_short: false,
            dice,
        }
    }

    fn dice(&mut self, bound: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % bound
    }

    fn at(&mut self, ms: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((ms, self.serial), event);
    }

    /// One stretch of the way.
    fn send(&mut self, from: usize, is_behind_hook: bool, segment: Wire) {
        let stretch = 2 * from + usize::from(is_behind_hook);
        let number = self.counts[stretch];
        self.counts[stretch] += 1;
        let mut delay = 1;
        if self.now_ms < CALM_MS {
            let is_in_burst = |burst: &Burst| {
                burst.stretch == stretch && (burst.first..burst.first.saturating_add(burst.count)).contains(&number)
            };
            let is_lost = self.life.bursts.iter().any(is_in_burst) || self.dice(100) < self.life.loss;
            // A RST that no hook sees proves nothing.
            if is_lost && (is_behind_hook || segment.flags & RST == 0) {
                if !is_behind_hook && segment.length != 0 {
                    self.unseen[from].push((segment.seq, segment.length));
                }
                return;
            }
            if self.dice(100) < self.life.late {
                delay += self.dice(self.life.late_ms);
            }
        }
        self.at(self.now_ms + delay, Event::Arrives { from, is_behind_hook, segment });
    }

    fn carry_out(&mut self, end: usize, segments: Vec<Wire>) {
        for segment in segments {
            self.send(end, false, segment);
        }
        self.timers[end] += 1;
        if self.ends[end].waits() {
            let timer = self.timers[end];
            let rto_ms = 200 << self.ends[end].backoff.min(6);
            self.at(self.now_ms + rto_ms, Event::Silence { end, timer });
        }
        self.at(self.now_ms + 40, Event::Delayed { end });
    }

    /// The hook sees the segment of this end, and says whether it goes on.
    fn is_forwarded(&mut self, from: usize, segment: Wire) -> bool {
        let (key, hook) =
            if from == 0 { (crate::ends::request(), Hook::POD_IN) } else { (self.pair.response(), Hook::POD_OUT) };
        let Wire { flags, seq, ack, length } = segment;
        self.unseen[from].retain(|(unseen, _)| unseen.wrapping_sub(seq) >= length);
        self.is_cut_short |= flags == RST && self.is_unknown(1 - from, seq);
        self.pair.tables.now_ns = 1_000_000_000_000 + self.now_ms * 1_000_000;
        let mut work = Work::new(Packet { seq, ack, payload: length, ..Packet::new(key, flags) });
        decide(&mut self.pair.tables, &mut work, hook);
        self.forget(key);
        matches!(work.verdict.action, Action::ToBackend | Action::ToClient)
    }

    /// Whether both numbers of this end, which has acknowledged this one, moved by more than 64 KiB in segments that were lost before the hook and
    /// have not been sent again.
    fn is_unknown(&self, end: usize, acked: u32) -> bool {
        const NEAR: u32 = 1 << 16;
        let key = if end == 0 { crate::ends::request() } else { self.pair.response() };
        let known = self.pair.tables.flows.get(&key).map(|flow| flow.ack);
        let lost: u32 = self.unseen[end].iter().map(|(_, length)| length).sum();
        lost > NEAR && known.is_some_and(|known| acked.wrapping_sub(known) > NEAR)
    }

    /// Another CPU writes the numbers of some segments before.
    fn forget(&mut self, key: FlowKey<4>) {
        let (Some(stale), Some(flow)) = (self.life.stale, self.pair.tables.flows.get_mut(&key)) else { return };
        let is_request = key == crate::ends::request();
        let end = &self.ends[usize::from(!is_request)];
        if end.is_over() || flow.fin != 0 || end.sent > end.plan.bytes / 2 {
            return;
        }
        self.old.push((is_request, flow.next, flow.ack));
        if self.old.len() == stale as usize * 2
            && let Some(&(_, next, ack)) = self.old.iter().rev().nth(stale as usize).filter(|old| old.0 == is_request)
        {
            (flow.next, flow.ack) = (next, ack);
        }
    }

    fn happen(&mut self, event: Event) {
        let mut out = Vec::new();
        match event {
            Event::Arrives { from, is_behind_hook: false, segment } => {
                if self.is_forwarded(from, segment) {
                    self.send(from, true, segment);
                } else if segment.flags & RST == 0 {
                    // Nobody knows the connection any more.
                    self.ends[from].receive(Wire { flags: RST, seq: segment.ack, ack: 0, length: 0 }, &mut Vec::new());
                }
            }
            Event::Arrives { from, is_behind_hook: true, segment } => {
                let end = 1 - from;
                self.ends[end].receive(segment, &mut out);
                self.carry_out(end, out);
            }
            Event::Silence { end, timer } => {
                if timer == self.timers[end] {
                    self.ends[end].strike(&mut out);
                    self.carry_out(end, out);
                }
            }
            Event::Delayed { end } => {
                self.ends[end].acknowledge_now(&mut out);
                for segment in out {
                    self.send(end, false, segment);
                }
            }
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for end in 0..2 {
            let mut out = Vec::new();
            self.ends[end].go_on(&mut out);
            self.carry_out(end, out);
        }
        for _ in 0..=PROBES {
            while let Some(((ms, _), event)) = self.queue.pop_first() {
                self.now_ms = ms;
                self.happen(event);
            }
            for end in 0..2 {
                if let Some(probe) = self.ends[end].probe() {
                    self.at(self.now_ms + IDLE_MS, Event::Arrives { from: end, is_behind_hook: false, segment: probe });
                }
            }
        }
        if self.ends.iter().any(|end| !end.is_over()) {
            return Err(format!("the ends do not come to an end after {} ms: {:?}", self.now_ms, self.ends));
        }
        let Memory { flows, timeouts, now_ns, .. } = &self.pair.tables;
        let late_s = u32::try_from(now_ns / 1_000_000_000).expect("few") + timeouts.closing_s + 1;
        let stays = |(key, flow): (&FlowKey<4>, &Flow<4>)| !expired(flow, timeouts.of_flow(key.protocol, flow), late_s);
        let is_left = !self.is_cut_short && flows.iter().any(stays);
        if is_left { Err(format!("left: {flows:?} of {:?}", self.ends)) } else { Ok(()) }
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let bytes = prop_oneof![2 => 0..20_000_u64, 2 => 0..4_000_000_u64, 1 => Just(0_u64)];
    let ending = prop_oneof![
        3 => Just(Ending::Half),
        2 => (0..3_000_000_u64).prop_map(Ending::Close),
        3 => (0..3_000_000_u64).prop_map(Ending::Abort),
    ];
    let segment = prop_oneof![Just(1_448_u64), Just(16_000), Just(64_000)];
    let window = prop_oneof![Just(64_000_u64), Just(300_000), Just(1_000_000), Just(6_000_000)];
    (bytes, segment, window, ending).prop_map(|(bytes, segment, window, ending)| Plan {
        // What needs very many segments shows nothing more.
        bytes: bytes.min(segment * 400),
        segment,
        window,
        ending,
    })
}

fn life() -> impl Strategy<Value = Life> {
    let burst =
        (0..STRETCHES, 0..60_u32, 1..80_u32).prop_map(|(stretch, first, count)| Burst { stretch, first, count });
    let isn = prop_oneof![any::<u32>(), (0..3_000_000_u32).prop_map(|before| 0_u32.wrapping_sub(before))];
    let network = (prop_oneof![Just(0_u64), 0..15_u64], prop_oneof![Just(0_u64), 0..30_u64], 1..60_u64);
    let bursts = prop::collection::vec(burst, 0..4);
    (
        [plan(), plan()],
        [isn.clone(), isn],
        any::<u64>(),
        network,
        bursts,
        prop::option::weighted(0.1, 2..60_u32),
        any::<bool>(),
    )
        .prop_map(|(mut plans, isns, seed, (loss, late, late_ms), bursts, stale, waits)| {
            for plan in &mut plans {
                // An end that is to go at a moment that does not come goes at its end.
                let total = plans_total(&[*plan]);
                if let Ending::Close(after) | Ending::Abort(after) = &mut plan.ending {
                    *after = (*after).min(total);
                }
            }
            if waits {
                plans[1].ending = Ending::Last;
            }
            Life { plans, isns, seed, loss, late, late_ms, bursts, stale }
        })
}

fn plans_total(plans: &[Plan]) -> u64 {
    plans.iter().map(|plan| plan.bytes).sum()
}

/// 0 of 100,000 in the long form.
#[test]
fn no_entry_outlasts_both_ends() {
    let cases = lb_seed::short_or_long(2_000, 100_000);
    let config = ProptestConfig { max_shrink_iters: 1_000, ..lb_seed::property(file!(), cases) };
    let played = TestRunner::new(config).run(&life(), |life| World::new(life).run().map_err(TestCaseError::fail));
    if let Err(error) = played {
        panic!("{error}");
    }
}
