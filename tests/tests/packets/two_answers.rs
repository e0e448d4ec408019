//! A SYN that went to two backends, both of which answer at the same moment on two CPUs. One answer goes to the client, and the connection is with
//! its backend.
//!
//! The programs are the driven ones (`tests/mutations/driven`): the clock is the test's, so that no retry has to be waited for.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, MapData};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use lb_common::abi::{FlowKey, HalfOpen, TCP, UDP, claim_key, flow_flags, half_open_flags};
use lb_common::decide::Packet;
use lb_common::plain::{Memory, frontend, tuple};
use lb_common::state::tcp_flag::{ACK, SYN};
use lb_tests::lockstep::Maps as _;
use lb_tests::oracle::{self, Frame};
use lb_tests::programs;
use lb_tests::test_run::{Hook, LoadedPrograms};
use lb_tests::topology::Topology;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// How many pairs of answers there are, in the short form and in the long one.
const PAIRS: [usize; 2] = [20_000, 1_000_000];
/// Connections that are begun before their answers come: far fewer than the half-open table holds.
const BATCH: usize = 128;
/// One CPU is later than the other one by up to so many turns of a loop: a few microseconds.
const LATEST: usize = 2_000;

/// After so many seconds a handshake that nobody completes is forgotten.
const FORGOTTEN_S: u64 = 61;

const VIP: [u8; 4] = [10, 3, 0, 1];
const BACKENDS: [[u8; 4]; 2] = [[10, 2, 0, 1], [10, 2, 0, 2]];
/// `TCX_NEXT`: the packet goes on.
const NEXT: u32 = u32::MAX;

/// A connection whose SYN went out.
#[derive(Clone, Copy)]
struct Attempt {
    syn: Packet<4>,
    /// The tuples of the answers, in the order in which the backends were asked.
    answers: [FlowKey<4>; 2],
}

impl Attempt {
    fn answer(&self, at: usize) -> Vec<u8> {
        let (seq, ack) = (500 + u32::try_from(at).expect("two"), self.syn.seq.wrapping_add(1));
        Frame::of(&Packet { seq, ack, ..Packet::new(self.answers[at], SYN | ACK) }).bytes()
    }
}

/// The loaded programs of a client's link.
struct Link {
    programs: LoadedPrograms,
    clock: Array<MapData, [u64; 2]>,
    now_ns: u64,
}

impl Link {
    fn load() -> Result<Self> {
        let mut programs = LoadedPrograms::load_from(&programs::edited("driven", "driven")?, u32::MAX, 1_000, 1)?;
        let clock = programs.take_map(".bss")?.try_into()?;
        let mut tables = Memory::empty();
        tables.serve(1, 0, frontend(TCP, (VIP, 80)), &BACKENDS, 8080);
        tables.serve(2, 2, frontend(UDP, (VIP, 53)), &BACKENDS, 5353);
        programs.fill(&tables)?;
        // Loads them.
        for hook in [Hook::PodIn, Hook::PodOut] {
            programs.run(hook, &Frame::of(&Packet::new(asks(0), ACK)).bytes())?;
        }
        Ok(Self { programs, clock, now_ns: 1_000_000_000_000 })
    }

    fn pass_second(&mut self) -> Result<()> {
        self.pass(1)
    }

    fn pass(&mut self, seconds: u64) -> Result<()> {
        self.now_ns += seconds * 1_000_000_000;
        Ok(self.clock.set(0, [self.now_ns, self.now_ns], 0)?)
    }

    /// Sends the SYN. The tuple of its answer.
    fn ask(&mut self, syn: &Packet<4>) -> Result<FlowKey<4>> {
        let ran = self.programs.run(Hook::PodIn, &Frame::of(syn).bytes())?.context("a whole packet")?;
        let sent = oracle::tuple::<4>(&ran.bytes).context("a packet of TCP")?;
        ensure!(BACKENDS.contains(&sent.dst), "{:?} became {sent:?}", syn.key);
        Ok(sent.reversed())
    }

    /// Sends the SYNs of new connections.
    fn begin(&mut self, round: usize) -> Result<Vec<Attempt>> {
        // Nobody remembers the one before under the same tuple: it would go on beside this one.
        self.pass(FORGOTTEN_S)?;
        let begin = |at: usize| {
            let seq = u32::try_from((round * BATCH + at) << 1 & 0xffff_ffff)?;
            let syn = Packet { seq, ..Packet::new(asks(at), SYN) };
            let answer = self.ask(&syn)?;
            Ok(Attempt { syn, answers: [answer; 2] })
        };
        (0..BATCH).map(begin).collect()
    }

    /// Whose answer the client must acknowledge, by the table.
    fn winner(&self, attempt: &Attempt) -> Result<FlowKey<4>> {
        let entry: HalfOpen<4> = self.programs.state4.half_open.get(&attempt.syn.key, 0)?;
        let flow = entry.flow;
        ensure!(
            entry.flags & half_open_flags::ANSWERED != 0 && flow.flags & flow_flags::REPLY == 0,
            "nobody has answered: {entry:?}"
        );
        Ok(tuple(TCP, (flow.address, flow.port), (flow.client, flow.client_port)))
    }

    /// Forgets the claim, so that the table does not fill.
    fn forget(&mut self, attempt: &Attempt) {
        let mut key = attempt.syn.key;
        claim_key(&mut key, attempt.syn.seq);
        // A connection that was not retried has none.
        let _ = self.programs.state4.half_open.remove(&key);
    }
}

fn asks(client: usize) -> FlowKey<4> {
    tuple(TCP, ([10, 1, 0, 1], 10_000 + u16::try_from(client).expect("few")), (VIP, 80))
}

/// Runs a packet. `None`: it does not go on; else the packet that comes out.
fn run(program: &SchedClassifier, packet: &[u8]) -> Result<Option<FlowKey<4>>> {
    let mut out = [0; 512];
    let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut out), ..TestRunOptions::default() };
    let ran = program.test_run(options)?;
    Ok(if ran.return_value == NEXT { oracle::tuple(&out) } else { None })
}

/// What goes on one CPU: a program, and a packet for each connection.
type Side<'a> = (&'a SchedClassifier, Vec<Vec<u8>>);

/// Runs both sides' packets on two CPUs, each pair at the same moment. What came out of each.
fn race(sides: &[Side<'_>; 2], late: usize) -> Result<[Vec<Option<FlowKey<4>>>; 2]> {
    let cpus = two_cpus()?;
    let (start, met) = (Barrier::new(2), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (start, met) = (&start, &met);
    std::thread::scope(|scope| {
        let running = [0, 1].map(|side| {
            let (program, packets) = &sides[side];
            scope.spawn(move || {
                pin_to(cpus[side])?;
                start.wait();
                let mut all = Vec::with_capacity(packets.len());
                for (at, packet) in packets.iter().enumerate() {
                    met[side].store(at + 1, Ordering::Release);
                    let mut turns = 0_u32;
                    while met[1 - side].load(Ordering::Acquire) <= at {
                        spin_loop();
                        turns += 1;
                        // Somebody else has the other CPU.
                        if turns.is_multiple_of(4_096) {
                            std::thread::yield_now();
                        }
                    }
                    // Both orders, and all between.
                    let turns = (late + at * 37) % LATEST;
                    let wait = if (turns & 1) == side { turns / 2 } else { 0 };
                    for turn in 0..wait {
                        black_box(turn);
                    }
                    all.push(run(program, packet)?);
                }
                Ok::<_, anyhow::Error>(all)
            })
        });
        let [one, other] = running.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok([one?, other?])
    })
}

fn two_cpus() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let one = cpus.next().context("a CPU to run on")?;
    Ok([one, cpus.next().unwrap_or(one)])
}

fn pin_to(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Plays rounds until there were enough; `round` says how many pairs met, and how many of them the first side has won.
fn rounds(subject: &str, pairs: usize, round: impl Fn(&mut Link, usize) -> Result<usize> + Sync) -> Result<()> {
    // Each needs both CPUs.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    node.netns().run(|| {
        let mut link = Link::load()?;
        let (start, first) = (Instant::now(), usize::try_from(lb_seed::of_run() % 1_000_000)?);
        let (mut played, mut won) = (0, 0);
        for number in first.. {
            won += round(&mut link, number)?;
            played += BATCH;
            if played >= pairs {
                break;
            }
        }
        println!("{played} pairs in {:.1?}: the first side won {won}", start.elapsed());
        let [one, other] = two_cpus()?;
        // On one CPU they meet between two packets alone.
        let met = won > played / 100 && won < played / 100 * 99;
        ensure!(met || one == other, "one side won {won} of {played}: they did not meet");
        Ok(())
    })
}

#[test]
fn of_two_answers_at_once_one_goes_to_the_client_and_has_the_connection() -> Result<()> {
    let [short, long] = PAIRS;
    rounds("answers", lb_seed::short_or_long(short, long), |link, number| {
        let mut attempts = link.begin(number)?;
        link.pass_second()?;
        for attempt in &mut attempts {
            attempt.answers[1] = link.ask(&attempt.syn)?;
            ensure!(attempt.answers[0] != attempt.answers[1], "the SYN went to another backend");
        }
        let program = link.programs.entry(Hook::PodOut)?;
        let packets = |side: usize| attempts.iter().map(|attempt| attempt.answer(side)).collect();
        let [one, other] = race(&[(program, packets(0)), (program, packets(1))], number)?;
        let mut won = 0;
        for (at, attempt) in attempts.iter().enumerate() {
            let told = [one[at], other[at]];
            let winners = told.iter().flatten().count();
            ensure!(winners == 1, "{winners} answers went to the client: {told:?}");
            let winner = usize::from(told[1].is_some());
            ensure!(told[winner] == Some(attempt.syn.key.reversed()), "as by the service: {told:?}");
            let held = link.winner(attempt)?;
            ensure!(held == attempt.answers[winner], "{told:?}, and the table leads to {held:?}");
            won += 1 - winner;
            link.forget(attempt);
        }
        Ok(won)
    })
}

#[test]
fn of_an_answer_that_crosses_the_retry_and_the_next_ones_one_goes_to_the_client() -> Result<()> {
    let [short, long] = PAIRS;
    rounds("crossing", lb_seed::short_or_long(short, long / 10), |link, number| {
        let mut attempts = link.begin(number)?;
        link.pass_second()?;
        // The client's SYN once more on one CPU, the first backend's answer on the other.
        let asks = attempts.iter().map(|attempt| Frame::of(&attempt.syn).bytes()).collect();
        let answers = attempts.iter().map(|attempt| attempt.answer(0)).collect();
        let [pod_in, pod_out] = link.programs.entries([Hook::PodIn, Hook::PodOut])?;
        let [asked, told] = race(&[(pod_in, asks), (pod_out, answers)], number)?;
        let mut retried = 0;
        for (at, attempt) in attempts.iter_mut().enumerate() {
            attempt.answers[1] = asked[at].context("the SYN goes to a backend")?.reversed();
            let is_retried = attempt.answers[1] != attempt.answers[0];
            retried += usize::from(is_retried);
            // What was tried in vain answers as well.
            let late = if is_retried { run(pod_out, &attempt.answer(1))? } else { None };
            ensure!(told[at].is_some(), "the first backend's answer comes first");
            ensure!(late.is_none(), "two answers went to the client: {:?}, {late:?}", told[at]);
        }
        for attempt in &attempts {
            let held = link.winner(attempt)?;
            ensure!(held == attempt.answers[0], "the table leads to {held:?}");
            link.forget(attempt);
        }
        Ok(retried)
    })
}

/// Two datagrams of a fresh socket, as resolvers send them for A and AAAA.
#[test]
fn of_two_datagrams_at_once_each_gets_its_answer() -> Result<()> {
    let [short, long] = PAIRS;
    rounds("datagrams", lb_seed::short_or_long(short / 2, long / 10), |link, number| {
        link.pass_second()?;
        // A client without entries.
        let [.., third, last] = number.to_be_bytes();
        let client = |at| ([10, 1, third, last], asks(at).src_port);
        let asks: Vec<_> = (0..BATCH).map(|at| tuple(UDP, client(at), (VIP, 53))).collect();
        let packets = || asks.iter().map(|key| Frame::of(&Packet::new(*key, 0)).bytes()).collect();
        let [pod_in, pod_out] = link.programs.entries([Hook::PodIn, Hook::PodOut])?;
        let sent = race(&[(pod_in, packets()), (pod_in, packets())], number)?;
        let mut parted = 0;
        for (at, key) in asks.iter().enumerate() {
            let tuples = [sent[0][at], sent[1][at]].map(|sent| sent.expect("the datagram goes to a backend"));
            parted += usize::from(tuples[0] != tuples[1]);
            for tuple in tuples {
                let told = run(pod_out, &Frame::of(&Packet::new(tuple.reversed(), 0)).bytes())?;
                ensure!(told == Some(key.reversed()), "{tuples:?}: the answer to {tuple:?} became {told:?}");
            }
        }
        Ok(parted)
    })
}
