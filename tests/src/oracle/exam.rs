//! Runs random packets through the live programs and holds every result against the model.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use lb_common::outcome::Outcome;
use nix::time::{ClockId, clock_gettime};

use super::judge::{Books, judge, judge_broken};
use super::ways::Ways;
use super::world::World;
use super::{ageing, entries, generate, tables, traffic};
use crate::live::Live;
use crate::random::Random;

/// What was examined: that an exam asked something is part of its result.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    /// How often each outcome came up.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets that the kernel takes for no test run.
    pub refused_by_kernel: u64,
    /// Packets during which a second struck: not judged, their worlds were left.
    pub at_the_second: u64,
}

/// An examination: live programs, and a tally.
pub struct Exam {
    live: Live,
    ways: Ways,
    /// First and last port to translate to.
    ports: (u16, u16),
    tally: Tally,
}

/// Ages by which the flows of a world grow older between packets: below and beyond every timeout.
const AGES_S: [u32; 8] = [2, 2, 2, 2, 20, 50, 100, 200];

impl Exam {
    /// Loads the programs; the calling thread's namespace must be that of the ways.
    pub fn new(ways: Ways) -> Result<Self> {
        Self::of(Live::load()?, ways, (61_000, u16::MAX))
    }

    /// The same with so few ports to translate to that they are used up.
    pub fn with_few_ports(ways: Ways) -> Result<Self> {
        let (first, count) = (61_000, 2);
        Self::of(Live::load_with_ports(first, count)?, ways, (first, first + (count - 1)))
    }

    fn of(mut live: Live, ways: Ways, ports: (u16, u16)) -> Result<Self> {
        ways.tell(&mut live)?;
        Ok(Self { live, ways, ports, tally: Tally::default() })
    }

    /// What was examined so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn generate(&self, random: &mut Random, v6: bool) -> World {
        let mut world = generate::world(random, v6, now_s());
        (world.ports, world.ways) = (self.ports, Some(self.ways.clone()));
        generate::set_addresses(random, v6, &mut world, self.ways.links());
        world
    }

    /// One world of one family with this many packets.
    pub fn world(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.live.clear()?;
        let mut world = self.generate(&mut random, v6);
        tables::write(&mut self.live, &world)?;
        for number in 0..packets {
            let go_on = self
                .packet(&mut random, v6, &mut world)
                .with_context(|| format!("seed {seed}, {}, packet {number}", if v6 { "IPv6" } else { "IPv4" }))?;
            if !go_on {
                break;
            }
        }
        Ok(())
    }

    /// One world that broken packets are sent to: what comes out is never misdelivered, and counted.
    pub fn broken(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.live.clear()?;
        let world = self.generate(&mut random, v6);
        tables::write(&mut self.live, &world)?;
        for number in 0..packets {
            let (hook, frame) = traffic::packet(&mut random, v6, &world);
            let bytes = traffic::broken(&mut random, &frame);
            let before: u64 = self.live.outcomes()?.iter().sum();
            let Some(ran) = self.live.run(hook, &bytes)? else {
                self.tally.refused_by_kernel += 1;
                continue;
            };
            let counts = self.live.outcomes()?.iter().sum::<u64>() - before;
            self.live.take_events();
            self.tally.packets += 1;
            judge_broken(&world, hook, &frame, &bytes, &ran, counts).with_context(|| {
                format!("seed {seed}, packet {number}: {hook:?} {frame:?}\nbroken: {bytes:02x?}\nran: {ran:02x?}")
            })?;
        }
        Ok(())
    }

    /// A change or two, then a packet. `false`: the clock's second struck meanwhile, nobody can tell what is right.
    fn packet(&mut self, random: &mut Random, v6: bool, world: &mut World) -> Result<bool> {
        self.change(random, world)?;
        ageing::age(&mut self.live, world, *random.of(&AGES_S))?;
        let (hook, frame) = traffic::packet(random, v6, world);
        let bytes = frame.bytes();
        let before = self.live.outcomes()?;
        let start = now_s();
        world.now_s = start;
        let Some(ran) = self.live.run(hook, &bytes)? else {
            self.tally.refused_by_kernel += 1;
            return Ok(true);
        };
        let after = self.live.outcomes()?;
        let sent = entries::sent(&self.live, (tables::number(frame.protocol), frame.src, frame.dst));
        let books = Books { stats: self.live.take_stats()?, events: self.live.take_events(), sent };
        if now_s() != start {
            self.tally.at_the_second += 1;
            return Ok(false);
        }
        let counted: Vec<Outcome> = Outcome::ALL
            .into_iter()
            .flat_map(|outcome| {
                let more = after[outcome as usize] - before[outcome as usize];
                std::iter::repeat_n(outcome, usize::try_from(more).unwrap_or(usize::MAX).min(9))
            })
            .collect();
        self.tally.packets += 1;
        let story =
            || format!("{hook:?} {frame:?}\nran: verdict {}, counted {counted:?}\nworld: {world:#?}", ran.verdict);
        let told = story();
        judge(world, hook, &frame, &bytes, &ran, &counted, &books).with_context(|| told.clone())?;
        entries::compare(&self.live, world).context(told)?;
        for outcome in counted {
            *self.tally.outcomes.entry(outcome.name()).or_default() += 1;
        }
        Ok(true)
    }

    /// What the agent does, and what a full table does.
    fn change(&mut self, random: &mut Random, world: &mut World) -> Result<()> {
        if random.one_in(6) && !world.backends.is_empty() {
            let ids: Vec<u32> = world.backends.keys().copied().collect();
            let id = *random.of(&ids);
            let backend = world.backends.get_mut(&id).context("one of them")?;
            generate::change_backend(random, backend);
            tables::write_backend(&mut self.live, id, backend, world.now_s)?;
        }
        if random.one_in(12) && !world.services.is_empty() {
            let keys: Vec<_> = world.services.keys().copied().collect();
            let key = *random.of(&keys);
            generate::rewrite_service(random, world, key);
            tables::write_service(&mut self.live, key.0, key.1, &world.services[&key])?;
            if random.one_in(8) {
                world.services.remove(&key);
                tables::remove_service(&mut self.live, key.0, key.1)?;
            }
        }
        if random.one_in(10) && !world.connections.is_empty() {
            let at = random.below(world.connections.len());
            let connection = &mut world.connections[at];
            let (protocol, half_open) = (tables::number(connection.protocol), connection.opening.is_some());
            if random.one_in(2) && connection.forward.take().is_some() {
                ageing::remove(&mut self.live, (protocol, connection.client, connection.target), half_open)?;
            } else if connection.reply.take().is_some() {
                let answers = (protocol, connection.answerer, connection.seen_client);
                ageing::remove(&mut self.live, answers, half_open)?;
            }
            world.tidy();
        }
        Ok(())
    }
}

/// The clock that the programs read.
fn now_s() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("the clock is there");
    u32::try_from(now.tv_sec()).expect("136 years of uptime")
}
