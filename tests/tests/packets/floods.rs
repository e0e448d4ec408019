//! What a flood costs: answers of our own and event records are so many in a second, and what is beyond is dropped and counted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_common::abi::{TCP, UDP, Vip, VipKey, vip_flags};
use lb_common::decide::Packet;
use lb_common::limits::{ANSWER_BURST, ANSWERS_PER_SECOND, EVENT_BURST, EVENTS_PER_SECOND};
use lb_common::outcome::Outcome;
use lb_common::plain::tuple;
use lb_tests::oracle::Frame;
use lb_tests::test_run::{Hook, LoadedPrograms};
use lb_tests::topology::Topology;

/// Verdicts at tc: dropped, redirected; at XDP: dropped, passed.
const DROP: i32 = 2;
const BACK: i32 = 7;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const VIP: [u8; 4] = [10, 9, 0, 10];
const CLIENT: [u8; 4] = [10, 9, 0, 2];
const SYN: u8 = 2;
/// Packets of a flood: more than a burst, within less than a second.
const FLOOD: u32 = 3 * ANSWER_BURST;
/// The buckets are full again after this.
const LULL: Duration = Duration::from_millis(1_200);

/// To a port that nobody serves.
fn asked(protocol: u8) -> Vec<u8> {
    let key = tuple(protocol, (CLIENT, 4_000), (VIP, 81));
    Frame::of(&Packet::new(key, if protocol == TCP { SYN } else { 0 })).bytes()
}

/// A TCP header that says that it is shorter than any.
fn malformed() -> Vec<u8> {
    let mut bytes = asked(TCP);
    bytes[14 + 20 + 12] = 0x40;
    bytes
}

fn ping() -> Vec<u8> {
    let mut bytes = asked(UDP);
    bytes[14 + 9] = 1;
    bytes[14 + 20..].copy_from_slice(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    bytes
}

/// On one CPU: each has buckets of its own.
fn with_programs(subject: &str, play: impl Fn(&mut LoadedPrograms) -> Result<()> + Sync) -> Result<()> {
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    node.netns().run(|| {
        let mut own = nix::sched::CpuSet::new();
        own.set(nix::sched::sched_getcpu()?)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &own)?;
        let mut programs = LoadedPrograms::load()?;
        programs.limit_floods();
        let flags = vip_flags::ECHO | vip_flags::REFUSE_UNSERVED;
        programs.state4.vips.insert(VipKey { address: VIP }, Vip { flags }, 0)?;
        play(&mut programs)
    })
}

/// So many packets in a row, of which each has one of these verdicts: how often each, and how many seconds it took, rounded up.
fn run(
    programs: &mut LoadedPrograms,
    hook: Hook,
    packet: &[u8],
    packets: u32,
    verdicts: [i32; 2],
) -> Result<([u32; 2], u32)> {
    let (mut counted, start) = ([0; 2], Instant::now());
    for _ in 0..packets {
        let ran = programs.run(hook, packet)?.context("the kernel takes it")?;
        let which = verdicts.iter().position(|verdict| *verdict == ran.verdict);
        counted[which.with_context(|| format!("{hook:?}: {ran:?}"))?] += 1;
    }
    Ok((counted, u32::try_from(start.elapsed().as_secs())? + 1))
}

fn since(programs: &LoadedPrograms, before: &[u64], outcome: Outcome) -> Result<u64> {
    Ok(programs.outcomes()?[outcome as usize] - before[outcome as usize])
}

#[test]
fn a_cpu_originates_so_many_answers_in_a_second() -> Result<()> {
    with_programs("answers", |programs| {
        let kinds = [
            (asked(TCP), Outcome::RefusedUnserved),
            (asked(UDP), Outcome::RefusedUnserved),
            (ping(), Outcome::EchoReplied),
        ];
        for (packet, outcome) in kinds {
            std::thread::sleep(LULL);
            let before = programs.outcomes()?;
            let ([answered, dropped], seconds) = run(programs, Hook::NodeIn, &packet, FLOOD, [BACK, DROP])?;
            let most = ANSWER_BURST + ANSWERS_PER_SECOND * seconds;
            assert!((ANSWER_BURST..=most).contains(&answered), "{outcome:?}: {answered} answers in {seconds} s");
            assert_eq!(since(programs, &before, Outcome::AnswerLimited)?, u64::from(dropped), "each is counted");
            let all = if outcome == Outcome::EchoReplied { answered } else { FLOOD };
            assert_eq!(since(programs, &before, outcome)?, u64::from(all));
            // Nobody who asks a few times in a second is left without an answer, before or afterwards.
            std::thread::sleep(LULL);
            assert_eq!(run(programs, Hook::NodeIn, &packet, 10, [BACK, DROP])?.0, [10, 0], "{outcome:?}");
        }
        Ok(())
    })
}

#[test]
fn xdp_drops_what_would_get_no_answer() -> Result<()> {
    with_programs("answersxdp", |programs| {
        let packet = asked(TCP);
        assert_eq!(run(programs, Hook::Xdp, &packet, 10, [XDP_PASS, XDP_DROP])?.0, [10, 0], "tc answers");
        let before = programs.outcomes()?;
        run(programs, Hook::NodeIn, &packet, FLOOD, [BACK, DROP])?;
        // The flood goes on at tc: what each tick adds to the bucket is taken at once.
        let mut xdp = 0;
        for _ in 0..100 {
            run(programs, Hook::NodeIn, &packet, 20, [BACK, DROP])?;
            xdp += run(programs, Hook::Xdp, &packet, 1, [XDP_PASS, XDP_DROP])?.0[1];
        }
        assert!(xdp > 50, "{xdp} of 100 dropped, and tc has no answer left");
        assert_eq!(since(programs, &before, Outcome::RefusedUnserved)?, u64::from(FLOOD + 100 * 20 + xdp));
        assert!(
            since(programs, &before, Outcome::AnswerLimited)? >= u64::from(FLOOD - ANSWER_BURST),
            "each is counted"
        );
        std::thread::sleep(LULL);
        assert_eq!(run(programs, Hook::Xdp, &packet, 10, [XDP_PASS, XDP_DROP])?.0, [10, 0], "tc answers again");
        Ok(())
    })
}

#[test]
fn a_flood_of_one_kind_leaves_room_for_events_of_others() -> Result<()> {
    with_programs("events", |programs| {
        programs.take_events();
        let before = programs.outcomes()?;
        let (_, seconds) = run(programs, Hook::NodeIn, &asked(TCP), FLOOD, [BACK, DROP])?;
        run(programs, Hook::NodeIn, &malformed(), 1, [BACK, DROP])?;
        let events = programs.take_events();
        let of = |outcome: Outcome| events.iter().filter(|event| event.outcome == outcome as u8).count() as u64;
        let (told, most) = (of(Outcome::RefusedUnserved), u64::from(EVENT_BURST + EVENTS_PER_SECOND * seconds));
        assert!((u64::from(EVENT_BURST)..=most).contains(&told), "{told} events in {seconds} s");
        assert_eq!(since(programs, &before, Outcome::EventLost)?, u64::from(FLOOD) - told, "each is counted");
        assert_eq!(of(Outcome::DroppedMalformed), 1, "another event is told");
        std::thread::sleep(LULL);
        run(programs, Hook::NodeIn, &asked(TCP), 1, [BACK, DROP])?;
        assert_eq!(programs.take_events().len(), 1, "the next is told again");
        Ok(())
    })
}
