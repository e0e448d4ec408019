//! `scale`: Ballast's programs on one packet at a time with 10, 10,000 and 100,000 services. All sizes take turns in one run, in tables of the
//! same capacity.

mod subject;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use lb_tests::topology::Topology;
use serde_json::{Value, json};

use self::subject::{FIRST_KNOWN, KNOWN, Subject, client};
use crate::figures::{Better, Figure, Part};
use crate::fixture::ballast::service;
use crate::machine::{Cpus, load, machine};
use crate::packet::frames::{ACK, SYN, tcp};
use crate::packet::runner::{Yardstick, run as run_program};
use crate::statistics::Samples;

/// Numbers of services; everything is compared with the first.
const SIZES: [usize; 3] = [10, 10_000, 100_000];
const ROUNDS: u32 = 40;
const PACKETS: u32 = 400;
/// Packets of one size before the next one's turn.
const BLOCK: u32 = 50;
/// First port of new flows, and how many there are until the next address.
const FIRST_NEW: u32 = 4_000;
const PORTS: u32 = 60_000;

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
    /// A packet of a known flow, measured a second time: noise.
    KnownAgain,
}

const KINDS: [LookupCase; 3] = [LookupCase::Known, LookupCase::Hot, LookupCase::KnownAgain];

impl LookupCase {
    const fn name(self) -> &'static str {
        match self {
            Self::Known => "known flow",
            Self::Hot => "new flow to a hot service",
            Self::KnownAgain => "known flow, again",
        }
    }

    /// The packets of one turn; `next` numbers new flows.
    fn frames(self, next: &mut u32) -> Vec<Vec<u8>> {
        let frame = |number: u32| {
            if self == Self::Hot {
                let (port, turn) = (FIRST_NEW + *next % PORTS, *next / PORTS);
                *next += 1;
                return tcp(client(turn, u16::try_from(port).expect("below a u16")), service(0, 0), SYN, number, 0);
            }
            let port = FIRST_KNOWN + u16::try_from(number % u32::from(KNOWN)).expect("below a u16");
            tcp(client(0, port), service(0, 0), ACK, 1_001, 9_001)
        };
        (0..BLOCK).map(frame).collect()
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
    let yardstick = Yardstick::load(&object)?;
    let start = |services| Subject::start(&topology, agent, services, stop);
    let subjects: Vec<Subject> = SIZES.into_iter().map(start).collect::<Result<_>>()?;
    for subject in &subjects {
        subject.prepare(stop).with_context(|| format!("{} services", subject.services))?;
    }
    eprintln!("==> packets");
    let here = Cpus::one()?;
    let samples = measure(&subjects, &yardstick, rounds, asked.packets, stop)?;
    drop(here);
    println!("{}", table(&samples));
    let figures = figures(&samples);
    let details = json!({
        "machine": machine()?, "loadBefore": load_before, "loadAfter": load(), "rounds": rounds,
        "packetsPerRound": asked.packets, "nanoseconds": nanoseconds(&samples),
    });
    Ok(Part { bench: "scale", figures, details, left_out: Vec::new() })
}

/// Nanoseconds by kind, by size, by round; less what a program takes that does nothing.
type Nanoseconds = [[Vec<f64>; SIZES.len()]; KINDS.len()];

fn measure(
    subjects: &[Subject],
    yardstick: &Yardstick,
    rounds: u32,
    packets: u32,
    stop: &AtomicBool,
) -> Result<Nanoseconds> {
    let mut all: Nanoseconds = Default::default();
    let nothing = yardstick.program("nothing")?;
    let mut next = [0; SIZES.len()];
    for round in 0..=rounds {
        for (kind, samples) in KINDS.into_iter().zip(&mut all) {
            let mut times = vec![[Vec::new(), Vec::new()]; SIZES.len()];
            for block in 0..packets.div_ceil(BLOCK) {
                let mut order: Vec<usize> = (0..SIZES.len()).collect();
                // There and back.
                if block % 2 == 1 {
                    order.reverse();
                }
                for size in order {
                    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                    let (subject, frames) = (&subjects[size], kind.frames(&mut next[size]));
                    subject.within(|| {
                        for (program, times) in [&subject.pod_in, nothing].into_iter().zip(&mut times[size]) {
                            for frame in &frames {
                                times.push(run_program(program, frame)?.ns);
                            }
                        }
                        anyhow::Ok(())
                    })?;
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

/// Costs of this size by those of the first, round by round.
fn growth(samples: &[Vec<f64>; SIZES.len()], size: usize) -> Vec<f64> {
    samples[size].iter().zip(&samples[0]).map(|(large, small)| large / small).collect()
}

fn figures(all: &Nanoseconds) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (size, services) in SIZES.into_iter().enumerate().skip(1) {
        for (kind, samples) in KINDS.into_iter().zip(all) {
            let ratio: Samples = growth(samples, size).into_iter().collect();
            let name = format!("scale, {}: {services} services / {}", kind.name(), SIZES[0]);
            let figure = Figure::ratio(name, &ratio, Better::Less);
            figures.push(if kind == LookupCase::KnownAgain { figure } else { figure.aims(5, 1.03) });
        }
    }
    let [known, _, again] = all;
    let twice = again[0].iter().zip(&known[0]).map(|(again, before)| again / before).collect();
    let name = format!("scale, known flow, again / before, {} services", SIZES[0]);
    figures.push(Figure::ratio(name, &twice, Better::Less));
    figures
}

fn table(all: &Nanoseconds) -> String {
    let sizes = SIZES.map(|size| format!(" {size} services, ns |")).concat();
    let mut text = format!("| |{sizes}\n|---|{}\n", "---:|".repeat(SIZES.len()));
    for (kind, samples) in KINDS.into_iter().zip(all) {
        let medians = samples.each_ref().map(|samples| format!(" {:.0} |", median(samples))).concat();
        text = text + "| " + kind.name() + " |" + &medians + "\n";
    }
    text
}

fn nanoseconds(all: &Nanoseconds) -> Value {
    let rows = KINDS.into_iter().zip(all).map(|(kind, samples)| {
        let by_size = SIZES.into_iter().zip(samples);
        let by_size = by_size.map(|(size, samples)| (size.to_string(), json!(median(samples))));
        (kind.name().to_owned(), Value::Object(by_size.collect()))
    });
    Value::Object(rows.collect())
}

fn median(samples: &[f64]) -> f64 {
    samples.iter().copied().collect::<Samples>().median()
}
