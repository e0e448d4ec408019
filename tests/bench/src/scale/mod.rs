//! `scale`: Ballast's programs on one packet at a time with 10, 10,000 and 100,000 services, beside one look-up in a bare hash with as
//! many entries. All sizes take turns in one run, in tables of the same capacity. What has many services gets a million
//! flows besides, in the end.

mod sender;
mod subject;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use lb_tests::topology::Topology;
use serde_json::{Value, json};

use self::sender::Sender;
use self::subject::Subject;
use crate::figures::{Better, Figure, Part};
use crate::machine::{Cpus, load, machine};
use crate::packet::runner::run as run_program;
use crate::statistics::Samples;

/// Numbers of services; everything is compared with the first.
const SIZES: [usize; 3] = [10, 10_000, 100_000];
const ROUNDS: u32 = 40;
const PACKETS: u32 = 400;
/// Packets of one size before the next one's turn.
const BLOCK: u32 = 50;
/// Flows that are open where the most services are, once all else was measured; elsewhere there are few.
const FLOWS: u32 = 1_000_000;
/// Flows that each random service has before anything is measured, so that its counters and those of its backends are there.
const BEFORE: usize = 8;

#[derive(Clone, Debug, clap::Args)]
pub struct ScaleArguments {
    /// How often everything takes turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=400))]
    rounds: u32,
    /// Packets of each kind in a round.
    #[arg(long, default_value_t = PACKETS, value_parser = clap::value_parser!(u32).range(50..=4_000))]
    packets: u32,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
}

impl ScaleArguments {
    /// As without any option but this one.
    pub fn of(quick: bool) -> Self {
        Self { rounds: ROUNDS, packets: PACKETS, quick }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupCase {
    Known,
    /// A new flow to one service, which is always the same.
    Hot,
    /// A new flow to any service of the pool.
    Any,
    /// A look-up of any service of the pool in a bare hash.
    Bare,
    /// The first flow that a service has at all: its counters, and those of its backend, are made.
    First,
    /// A segment that is of no service and no flow.
    Foreign,
    /// A packet of a known flow, measured a second time: noise.
    KnownAgain,
}

const KINDS: [LookupCase; 7] = [
    LookupCase::Known,
    LookupCase::Hot,
    LookupCase::Any,
    LookupCase::Bare,
    LookupCase::First,
    LookupCase::Foreign,
    LookupCase::KnownAgain,
];
/// What is measured beside many flows, too.
const BESIDE: [LookupCase; 2] = [LookupCase::Known, LookupCase::Foreign];
/// Places of some of them.
const KNOWN_AT: usize = 0;
const ANY_AT: usize = 2;
const BARE_AT: usize = 3;
const AGAIN_AT: usize = 6;

impl LookupCase {
    const fn name(self) -> &'static str {
        match self {
            Self::Known => "known flow",
            Self::Hot => "new flow to a hot service",
            Self::Any => "new flow to a random service",
            Self::Bare => "look-up of a random service in a bare hash",
            Self::First => "first flow of a service",
            Self::Foreign => "foreign packet",
            Self::KnownAgain => "known flow, again",
        }
    }
}

/// Measures and prints.
pub fn run(asked: &ScaleArguments, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let rounds = if asked.quick { asked.rounds.min(12) } else { asked.rounds };
    let load_before = load();
    eprintln!("==> building the programs that do the least");
    let object = crate::yardstick::object()?;
    let topology = Topology::new("scale")?;
    eprintln!("==> starting agents with {SIZES:?} services");
    let start = |services| Subject::start(&topology, agent, &object, services, stop);
    let subjects: Vec<Subject> = SIZES.into_iter().map(start).collect::<Result<_>>()?;
    for subject in &subjects {
        subject.prepare(stop).with_context(|| format!("{} services", subject.services))?;
    }
    eprintln!("==> packets");
    let here = Cpus::one()?;
    let samples = measure(&subjects, &KINDS, rounds, asked.packets, stop)?;
    eprintln!("==> packets beside {FLOWS} flows");
    subjects[SIZES.len() - 1].fill(FLOWS)?;
    let beside = measure(&subjects, &BESIDE, rounds, asked.packets, stop)?;
    drop(here);
    println!("{}", table(&samples, &KINDS));
    println!("With {FLOWS} flows where the most services are:\n\n{}", table(&beside, &BESIDE));
    let mut figures = figures(&samples);
    figures.extend(beside_flows(&beside));
    let details = json!({
        "machine": machine()?, "loadBefore": load_before, "loadAfter": load(), "rounds": rounds,
        "packetsPerRound": asked.packets, "nanoseconds": nanoseconds(&samples, &KINDS),
        "nanosecondsBesideFlows": nanoseconds(&beside, &BESIDE), "flows": FLOWS,
    });
    Ok(Part { bench: "scale", figures, details, left_out: Vec::new() })
}

/// Nanoseconds by kind, by size, by round; less what a program takes that does nothing.
type Nanoseconds = [[Vec<f64>; SIZES.len()]; KINDS.len()];

/// Measures these kinds; of the others there are no samples.
fn measure(
    subjects: &[Subject],
    kinds: &[LookupCase],
    rounds: u32,
    packets: u32,
    stop: &AtomicBool,
) -> Result<Nanoseconds> {
    let mut all: Nanoseconds = Default::default();
    let mut senders: Vec<Sender> = subjects.iter().map(|subject| Sender::new(subject.services)).collect();
    for (subject, sender) in subjects.iter().zip(&mut senders) {
        for _ in 0..(sender.pool.len() * BEFORE).div_ceil(BLOCK as usize) {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            run_block(subject, LookupCase::Any, &sender.frames(LookupCase::Any), &mut [Vec::new(), Vec::new()])?;
        }
    }
    for round in 0..=rounds {
        for (kind, samples) in KINDS.into_iter().zip(&mut all).filter(|(kind, _)| kinds.contains(kind)) {
            let mut times = vec![[Vec::new(), Vec::new()]; SIZES.len()];
            for block in 0..packets.div_ceil(BLOCK) {
                let mut order: Vec<usize> = (0..SIZES.len()).collect();
                // There and back.
                if block % 2 == 1 {
                    order.reverse();
                }
                for size in order {
                    if stop.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    let frames = senders[size].frames(kind);
                    run_block(&subjects[size], kind, &frames, &mut times[size])?;
                }
            }
            // The first round warms up.
            if round > 0 {
                for (samples, times) in samples.iter_mut().zip(times) {
                    let [tested, nothing] = times.map(|times| times.into_iter().collect::<Samples>().median());
                    samples.push(tested - nothing);
                }
            }
        }
    }
    Ok(all)
}

fn run_block(subject: &Subject, kind: LookupCase, frames: &[Vec<u8>], times: &mut [Vec<f64>; 2]) -> Result<()> {
    let tested = if kind == LookupCase::Bare { subject.yardstick.program("hash4")? } else { &subject.pod_in };
    let nothing = subject.yardstick.program("nothing")?;
    subject.within(|| {
        for (program, times) in [tested, nothing].into_iter().zip(times) {
            for frame in frames {
                times.push(run_program(program, frame)?.ns);
            }
        }
        Ok(())
    })
}

/// Costs of this size by those of the first, round by round.
fn growth(samples: &[Vec<f64>; SIZES.len()], size: usize) -> Vec<f64> {
    samples[size].iter().zip(&samples[0]).map(|(large, small)| large / small).collect()
}

fn figures(all: &Nanoseconds) -> Vec<Figure> {
    let bare = &all[BARE_AT];
    let mut figures = Vec::new();
    for (size, services) in SIZES.into_iter().enumerate().skip(1) {
        let name = |kind: LookupCase| format!("scale, {}: {services} services / {}", kind.name(), SIZES[0]);
        // Ten services have no first flow left.
        for (kind, samples) in KINDS.into_iter().zip(all).filter(|(kind, _)| *kind != LookupCase::First) {
            let ratio: Samples = growth(samples, size).into_iter().collect();
            let figure = Figure::ratio(name(kind), &ratio, Better::Less);
            let has_goal = matches!(kind, LookupCase::Known | LookupCase::Hot);
            figures.push(if has_goal { figure.aims(5, 1.03) } else { figure });
        }
        let beside: Samples =
            growth(&all[ANY_AT], size).into_iter().zip(growth(bare, size)).map(|(ours, bare)| ours / bare).collect();
        let name = format!("{} / growth of the bare look-up", name(LookupCase::Any));
        figures.push(Figure::ratio(name, &beside, Better::Less).aims(5, 1.1));
    }
    let twice = all[AGAIN_AT][0].iter().zip(&all[KNOWN_AT][0]).map(|(again, before)| again / before).collect();
    figures.push(Figure::ratio(
        format!("scale, known flow, again / before, {} services", SIZES[0]),
        &twice,
        Better::Less,
    ));
    figures
}

/// What many services and many flows cost.
fn beside_flows(all: &Nanoseconds) -> Vec<Figure> {
    let (last, services) = (SIZES.len() - 1, SIZES[SIZES.len() - 1]);
    let of = |(kind, samples): (LookupCase, _)| {
        let ratio: Samples = growth(samples, last).into_iter().collect();
        let name = format!("scale, {}: {services} services and {FLOWS} flows / {} services", kind.name(), SIZES[0]);
        Figure::ratio(name, &ratio, Better::Less)
    };
    KINDS.into_iter().zip(all).filter(|(kind, _)| BESIDE.contains(kind)).map(of).collect()
}

fn table(all: &Nanoseconds, kinds: &[LookupCase]) -> String {
    let sizes = SIZES.map(|size| format!(" {size} services, ns |")).concat();
    let mut text = format!("| |{sizes}\n|---|{}\n", "---:|".repeat(SIZES.len()));
    for (kind, samples) in KINDS.into_iter().zip(all).filter(|(kind, _)| kinds.contains(kind)) {
        let medians = samples.each_ref().map(|samples| format!(" {:.0} |", median(samples))).concat();
        text = text + "| " + kind.name() + " |" + &medians + "\n";
    }
    text
}

fn nanoseconds(all: &Nanoseconds, kinds: &[LookupCase]) -> Value {
    let rows = KINDS.into_iter().zip(all).filter(|(kind, _)| kinds.contains(kind)).map(|(kind, samples)| {
        let by_size = SIZES.into_iter().zip(samples);
        let by_size = by_size.map(|(size, samples)| (size.to_string(), json!(median(samples))));
        (kind.name().to_owned(), Value::Object(by_size.collect()))
    });
    Value::Object(rows.collect())
}

fn median(samples: &[f64]) -> f64 {
    samples.iter().copied().collect::<Samples>().median()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_compared_with_that_of_a_bare_hash() {
        let mut all: Nanoseconds = Default::default();
        for (kind, by_size) in all.iter_mut().enumerate() {
            for (size, samples) in by_size.iter_mut().enumerate() {
                // The bare look-up takes twice and four times as long, a new flow to any service 1.5 and 2 times.
                let factor = match (kind, size) {
                    (3, 1) | (2, 2) => 2.0,
                    (3, 2) => 4.0,
                    (2, 1) => 1.5,
                    _ => 1.0,
                };
                *samples = vec![100.0 * factor; 5];
            }
        }
        let figures = figures(&all);
        let found = |part: &str| figures.iter().find(|figure| figure.name.contains(part)).expect("there").value;
        assert!((found("known flow: 100000") - 1.0).abs() < 1e-9);
        assert!((found("random service: 100000 services / 10 / growth") - 0.5).abs() < 1e-9);
        assert!((found("random service: 10000 services / 10 / growth") - 0.75).abs() < 1e-9);
        assert_eq!(figures.iter().filter(|figure| figure.goal.is_some()).count(), 6);
    }
}
