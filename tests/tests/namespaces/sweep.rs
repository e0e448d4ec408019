//! What flows leave behind is taken out, a part at a time; what lives stays, also while packets come for it; ids come back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use aya::EbpfLoader;
use lb_common::abi::{
    Affinity, AffinityKey, Flow, FlowKey, HalfOpen, Health, TCP, Traffic, affinity_tag, flow_flags, flow_state,
    half_open_flags, map_name, tag,
};
use lb_common::decide::{Now, pair_key};
use lb_common::map;
use lb_common::state::Timeouts;
use lb_model::{Family, Monotonic};
use lb_plan::apply::{KernelStore, Programmer};
use lb_plan::plan::{BackendId, DrainLimits, PlanSettings};
use lb_plan::sweep::{PART, Reset, Rounds, Seen, SendReset, Start, SweepContext};
use lb_tables::{Connections, Pinned};
use lb_tests::agent::{Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::random::Random;
use lb_tests::test_run::object;
use lb_tests::topology::NodeOptions;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

const TIMEOUTS: Timeouts = Timeouts::DEFAULT;
/// Seconds of the clock of these tests: late enough for anything to be over.
const NOW: u32 = 1_000_000;
const LONG_AGO: u32 = NOW - 100_000;

/// Makes the maps of the programs' object and pins them in `dir`, on a bpffs that only this thread sees.
fn pin_maps(dir: &Path) -> Result<Pinned> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("bpf"), dir, Some("bpf"), MsFlags::empty(), none).context("mounting a bpffs")?;
    let mut loader = EbpfLoader::new();
    for name in [map_name::TRAFFIC4, map_name::TRAFFIC6] {
        loader.map_max_entries(name, 1024);
    }
    let mut ebpf = loader.load(&std::fs::read(object()?)?)?;
    for name in map_name::ALL {
        ebpf.take_map(name).with_context(|| format!("no map {name}"))?.pin(dir.join(name))?;
    }
    Ok(Pinned::open(dir)?)
}

type Half = (FlowKey<4>, Flow<4>);

/// Both directions of the flow of client `index`.
fn flow(index: u16, backend: u32, state: u8, seen_s: u32) -> [Half; 2] {
    let (src, dst) = ([10, 1, 0, 1], [10, 96, 0, 1]);
    let key = FlowKey { src, dst, src_port: 1000 + index, dst_port: 80, protocol: TCP, pad: [0; 3] };
    let forward = Flow {
        tag: tag(&key),
        backend,
        seen_s,
        since_s: 1,
        isn: 1,
        address: [10, 2, 0, 1],
        client: src,
        port: 8080,
        client_port: key.src_port,
        generation: 1,
        state,
        flags: 0,
        ..Flow::ZERO
    };
    let other = pair_key(&key, &forward);
    let reply = Flow { tag: tag(&other), address: dst, port: 80, flags: flow_flags::REPLY, ..forward };
    [(key, forward), (other, reply)]
}

/// [`sweep_with`] without the right to send RSTs.
fn sweep(
    maps: &Pinned,
    programmer: &Programmer<KernelStore>,
    start: Start,
) -> Result<(Seen, Vec<(&'static str, usize)>)> {
    sweep_with(maps, programmer, start, None)
}

/// Rounds by a clock that stands still but for what the rounds wait for. Returns what was taken out, by map.
fn sweep_with(
    maps: &Pinned,
    programmer: &Programmer<KernelStore>,
    start: Start,
    send_reset: Option<SendReset<'_>>,
) -> Result<(Seen, Vec<(&'static str, usize)>)> {
    let mut rounds = Rounds::new(Monotonic::default(), 0);
    let (mut seen, mut netns, mut swept) = (Seen::new(start, 0), None, Vec::new());
    let look = SweepContext {
        maps,
        programmed: programmer.programmed(),
        timeouts: &TIMEOUTS,
        now: Now { s: NOW, ds: NOW * 10 },
        at: Monotonic::from_duration(Duration::from_secs(NOW.into())),
        drain_limits: DrainLimits { period: Duration::from_secs(30), max: Duration::ZERO },
        send_reset,
    };
    loop {
        let now = rounds.due();
        let order = rounds.next(now).context("due")?;
        let part = look.part(order.table, &mut netns, order.count, &mut seen)?;
        assert!(part.looked <= PART, "a part is bounded");
        if part.removed > 0 {
            swept.push((order.table.name(), part.removed));
        }
        if rounds.done(part.looked, part.removed, part.is_last, now, 0).is_some() {
            return Ok((seen, swept));
        }
    }
}

fn programmer(dir: &Path) -> Result<Programmer<KernelStore>> {
    let store = KernelStore::new(Pinned::open(dir)?);
    Ok(Programmer::restore(store, PlanSettings::default(), Monotonic::default())?)
}

#[test]
fn what_is_over_goes_and_what_lives_stays() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (maps, programmer) = (pin_maps(dir.path())?, programmer(dir.path())?);
    let mut kept = BTreeSet::new();
    let mut put = |half: Half, stays: bool| {
        maps.of::<map::Flows<4>>().put(&half.0, &half.1)?;
        if stays {
            kept.insert(half.0);
        }
        anyhow::Ok(())
    };
    // Silent in both directions; alive in both; one direction was not written for long, the other was; one direction is missing.
    flow(1, 1, flow_state::OPEN, LONG_AGO).into_iter().try_for_each(|half| put(half, false))?;
    flow(2, 9, flow_state::OPEN, NOW - TIMEOUTS.open_s).into_iter().try_for_each(|half| put(half, true))?;
    let ([old, _], [_, new]) = (flow(3, 2, flow_state::CLOSING, LONG_AGO), flow(3, 2, flow_state::OPEN, NOW - 5));
    put(old, true)?;
    put(new, true)?;
    put(flow(4, 1, flow_state::CLOSING, NOW - TIMEOUTS.closing_s - 1)[1], false)?;
    put(flow(5, 1, flow_state::CLOSING, NOW - TIMEOUTS.closing_s)[1], true)?;
    // Nothing more is forwarded to a backend that is gone.
    flow(8, 1, flow_state::OPEN, NOW - TIMEOUTS.closing_s - 1).into_iter().try_for_each(|half| put(half, false))?;
    // Half-open: silent; of a backend that lost its connection to another one; a living one that has tried two.
    let half_open = |half: Half, seen_s, flags, tried| HalfOpen {
        flow: Flow { seen_s, state: flow_state::HALF_OPEN, ..half.1 },
        tried,
        answers: [0; 2],
        segments: 1,
        moves: 0,
        flags,
        refused: 0,
    };
    let [forward, reply] = flow(6, 3, flow_state::HALF_OPEN, 0);
    maps.of::<map::HalfOpen<4>>().put(&forward.0, &half_open(forward, NOW - 1, 0, [4, 5, 0]))?;
    maps.of::<map::HalfOpen<4>>().put(&reply.0, &half_open(reply, LONG_AGO, 0, [4, 5, 0]))?;
    let [_, left] = flow(7, 6, flow_state::HALF_OPEN, 0);
    maps.of::<map::HalfOpen<4>>().put(&left.0, &half_open(left, LONG_AGO, half_open_flags::LOST, [0; 3]))?;
    // An affinity of a service that is not there; counters with and without a flow.
    let client = AffinityKey { client: [10, 1, 0, 1], service: 9, netns: 0 };
    maps.of::<map::Affinity<4>>()
        .put(&client, &Affinity { tag: affinity_tag(&client), backend: 1, generation: 1, seen_ds: NOW * 10 })?;
    for half in [flow(2, 1, flow_state::OPEN, 0)[0], flow(1, 1, flow_state::OPEN, 0)[0]] {
        maps.of::<map::Traffic<4>>().put(&half.0, &Traffic { packets: 1, bytes: 64, since_s: 1, pad: 0 })?;
    }

    let id = |id| BackendId { family: Family::V4, id };
    let start = Start { gone: (1..8).map(id).collect(), draining: [id(2), id(6), id(8)].into(), ..Start::default() };
    let (seen, swept) = sweep(&maps, &programmer, start)?;
    let names = [map_name::HALF_OPEN4, map_name::FLOWS4, map_name::AFFINITY4, map_name::TRAFFIC4];
    assert_eq!(swept, names.into_iter().zip([1, 5, 1, 1]).collect::<Vec<_>>());
    let left: BTreeSet<FlowKey<4>> = maps.of::<map::Flows<4>>().read()?.into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, kept);
    assert_eq!(maps.of::<map::HalfOpen<4>>().read()?.len(), 2, "the flow that goes on keeps both directions");
    assert_eq!(seen.referred, [1, 2, 3, 4, 5].map(id).into(), "6 and 7 may be given away");
    assert_eq!(seen.idle(), [6, 8].map(id).into());
    let (_, swept) = sweep(&maps, &programmer, Start::default())?;
    assert_eq!(swept, [], "a second round finds nothing");
    // An idle connection goes only once half of the table is taken.
    flow(9, 9, flow_state::OPEN, NOW - TIMEOUTS.open_s - 1)
        .into_iter()
        .try_for_each(|half| maps.of::<map::Flows<4>>().put(&half.0, &half.1))?;
    let half = maps.of::<map::Flows<4>>().capacity() / 2;
    for (taken, expected) in [(half - 1, vec![]), (half, vec![(map_name::FLOWS4, 2)])] {
        let (_, swept) = sweep(&maps, &programmer, Start { established: [taken, 0], ..Start::default() })?;
        assert_eq!(swept, expected, "{taken} entries");
    }
    Ok(())
}

/// The backend is in no table. One that the socket has no room for is sent in the next round.
#[test]
fn each_end_of_a_connection_whose_backend_is_gone_gets_one_rst() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (maps, programmer) = (pin_maps(dir.path())?, programmer(dir.path())?);
    for ((key, half), (next, ack)) in flow(1, 7, flow_state::OPEN, LONG_AGO).into_iter().zip([(100, 200), (200, 100)]) {
        maps.of::<map::Flows<4>>().put(&key, &Flow { next, ack, ..half })?;
    }
    let reset = |from: &str, to: &str, seq, ack| -> Result<Reset> {
        Ok(Reset { from: from.parse()?, to: to.parse()?, seq, ack })
    };
    let due = BTreeSet::from([
        reset("10.96.0.1:80", "10.1.0.1:1001", 200, 100)?,
        reset("10.1.0.1:1001", "10.2.0.1:8080", 100, 200)?,
    ]);
    for (has_room, expected) in [(false, due.clone()), (true, due), (true, BTreeSet::new())] {
        let sent = RefCell::new(BTreeSet::new());
        let send = |reset: &Reset| {
            assert!(sent.borrow_mut().insert(*reset), "twice in a round: {reset:?}");
            has_room
        };
        // Silent for longer than any timeout of an ended connection: it stays until both ends have theirs.
        let start = Start { gone: [BackendId { family: Family::V4, id: 7 }].into(), ..Start::default() };
        let (_, swept) = sweep_with(&maps, &programmer, start, Some(&send))?;
        assert_eq!((sent.into_inner(), swept), (expected, vec![]));
    }
    let left = maps.of::<map::Flows<4>>().read()?;
    assert!(left.len() == 2 && left.iter().all(|(_, flow)| flow.state == flow_state::EVICTED), "{left:?}");
    Ok(())
}

/// Packets wake flows that are over at the very moment at which they are taken out: none that was woken is lost.
#[test]
fn a_flow_that_comes_to_life_keeps_at_least_one_direction() -> Result<()> {
    const FLOWS: u16 = 8_000;
    let dir = tempfile::tempdir()?;
    let (maps, programmer) = (pin_maps(dir.path())?, programmer(dir.path())?);
    let packets = Pinned::open(dir.path())?;
    let (seed, mut woken_in_all) = (lb_seed::of_run(), 0);
    for round in 0..10 {
        for half in (0..FLOWS).flat_map(|index| flow(index, 1, flow_state::OPEN, LONG_AGO)) {
            maps.of::<map::Flows<4>>().put(&half.0, &half.1)?;
        }
        let (begin, over) = (Barrier::new(2), AtomicBool::new(false));
        let woken = std::thread::scope(|scope| -> Result<BTreeSet<u16>> {
            let waker = scope.spawn(|| -> Result<BTreeSet<u16>> {
                let mut random = Random::new(seed + round);
                let mut woken = BTreeSet::new();
                begin.wait();
                while !over.load(Ordering::Relaxed) {
                    let index = u16::try_from(random.below(FLOWS.into()))?;
                    // As `commit::established::keep_entries` does: the packet's own entry is touched in place, the other one touched or written again.
                    let mut halves = flow(index, 1, flow_state::OPEN, NOW);
                    halves.swap(0, random.below(2));
                    let [(key, _), (other, fresh)] = halves;
                    let Some(found) = packets.of::<map::Flows<4>>().get(&key)? else { continue };
                    // Taken out meanwhile: a program would write to an element that nobody finds any more.
                    packets.of::<map::Flows<4>>().replace(&key, &Flow { seen_s: NOW, ..found })?;
                    if !packets.of::<map::Flows<4>>().replace(&other, &fresh)? {
                        packets.of::<map::Flows<4>>().put_new(&other, &fresh)?;
                    }
                    woken.insert(index);
                }
                Ok(woken)
            });
            begin.wait();
            sweep(&maps, &programmer, Start::default())?;
            over.store(true, Ordering::Relaxed);
            waker.join().unwrap()
        })?;
        let left: BTreeSet<FlowKey<4>> = maps.of::<map::Flows<4>>().read()?.into_iter().map(|(key, _)| key).collect();
        for index in &woken {
            let [(forward, _), (reply, _)] = flow(*index, 1, flow_state::OPEN, 0);
            assert!(left.contains(&forward) || left.contains(&reply), "flow {index} of round {round} is lost");
        }
        woken_in_all += woken.len();
    }
    assert!(woken_in_all > 0, "no flow came to life meanwhile");
    Ok(())
}

#[test]
fn a_drifted_count_is_set_right_and_what_programs_write_beside_it_stays() -> Result<()> {
    let fixture = Fixture::new("recount", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service]), &[]);
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables"))?;
    let connections = Connections::map(&maps.of::<map::Health<4>>())?;
    let mut backends = maps.of::<map::Backends<4>>().read()?.into_iter().filter(|(_, record)| record.generation != 0);
    let (id, record) = backends.next().context("a backend")?;
    let drifted =
        Health { generation: record.generation, answered_s: 17, ejected_s: 18, connections: 40, ..Health::default() };
    maps.of::<map::Health<4>>().put(&id, &drifted)?;
    assert_eq!(connections.of(id, record.generation), 40);
    for counter in [0, 7] {
        maps.client_shares.change(counter, 40);
    }
    eventually("nobody is connected, and so it says", SOON, || {
        (connections.of(id, record.generation) == 0).then_some(())
    });
    eventually("no client is", SOON, || maps.client_shares.read().iter().all(|count| *count == 0).then_some(()));
    let health = maps.of::<map::Health<4>>().get(&id)?.context("an array")?;
    assert_eq!((health.answered_s, health.ejected_s), (17, 18));
    eventually("it is counted", SOON, || {
        let page = agent.metrics().ok()?;
        let mut lines = page.lines();
        lines
            .any(|line| line.starts_with("ballast_recounted_connections_total") && line.ends_with(" 40.0"))
            .then_some(())
    });
    Ok(())
}

/// Ids and slots of pods that come and go are given away again, but for those that a flow still holds.
#[test]
fn ids_and_slots_of_a_hundred_generations_come_back() -> Result<()> {
    let fixture = Fixture::new("ids", Pods::Routed, 1, NodeOptions::default());
    let endpoint = fixture.endpoints().remove(0);
    let web = |uid: &str| Service::web(vec![endpoint.clone().pod(uid)]);
    let agent = fixture.agent(&Manifest::of([web("first")]), &["--drain-period=1s", "--drain-max=0s"]);
    let to = web("first").frontends(Protocol::Tcp)[0];
    let mut held = Stream::connect(fixture.client.netns(), to)?;
    held.ask("one")?;
    // Its flow stays, and with it the id of the pod that it was made to.
    let counts = || -> Option<(u64, u64)> {
        let status = agent.json(&["status"]).ok()?;
        let tables = &status["agent"]["tables"];
        let gone = tables["backends"]["gone"].as_u64()?;
        Some((gone, tables["fill"]["slots"]["entries"].as_u64()?))
    };
    for generation in 0..100 {
        agent.write(&Manifest::of([web(&format!("pod{generation}"))]))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.apply(&Manifest::of([web("last")]))?;
    eventually("all but one id are free, and the slots of four sets are held", 3 * SOON, || {
        (counts()? == (1, 4)).then_some(())
    });
    // The flow learns of its end; then nothing holds the id any more.
    held.ask("two").unwrap_err();
    drop(held);
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables"))?;
    for (key, _) in maps.of::<map::Flows<4>>().read()? {
        maps.of::<map::Flows<4>>().remove(&key)?;
    }
    eventually("no id is held", 3 * SOON, || (counts()? == (0, 4)).then_some(()));
    // Everything goes.
    agent.apply(&Manifest::default())?;
    eventually("nothing is left", 3 * SOON, || (counts()? == (0, 0)).then_some(()));
    Ok(())
}
