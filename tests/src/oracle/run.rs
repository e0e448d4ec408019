//! Runs random packets through the loaded programs and compares every result with the model.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use lb_common::abi::Health;
use lb_common::outcome::Outcome;
use lb_common::state::SourcePorts;
use nix::time::{ClockId, clock_gettime};

use super::client::Client;
use super::generate::address;
use super::judge::{SideEffects, judge, judge_broken};
use super::model::Model;
use super::routes::Routes;
use super::{adopted, ageing, entries, generate, tables, traffic};
use crate::random::Random;
use crate::test_run::LoadedPrograms;

/// What was examined: that a run asked something is part of its result.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    /// How often each outcome came up.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets that the kernel takes for no test run.
    pub refused_by_kernel: u64,
    /// Packets during which the clock reached its next second: they are not judged, and their models are dropped.
    pub at_the_second: u64,
}

/// An examination: loaded programs, and a tally.
pub struct OracleRun {
    programs: LoadedPrograms,
    routes: Routes,
    ports: SourcePorts,
    /// Counters of clients that were set for the present model.
    counters: BTreeMap<u32, u32>,
    tally: Tally,
}

/// Ages by which the flows of a model grow older between packets: below and beyond every timeout.
const AGES_S: [u32; 8] = [2, 2, 2, 2, 20, 50, 100, 200];

/// Established connections that fit, as the programs get it: few, so that some clients have more than their share.
const ROOM: u32 = 6;

impl OracleRun {
    /// Loads the programs; the calling thread's namespace must be that of the routes.
    pub fn new(routes: Routes) -> Result<Self> {
        Self::of(SourcePorts::DEFAULT, routes)
    }

    /// The same with so few ports to translate to that they are used up.
    pub fn with_few_ports(routes: Routes) -> Result<Self> {
        Self::of(SourcePorts::of_range(61_000, 2), routes)
    }

    fn of(ports: SourcePorts, routes: Routes) -> Result<Self> {
        let mut programs = LoadedPrograms::load_with(ports, ROOM)?;
        routes.tell(&mut programs)?;
        Ok(Self { programs, routes, ports, counters: BTreeMap::new(), tally: Tally::default() })
    }

    /// What was examined so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn generate(&self, random: &mut Random, v6: bool) -> Model {
        let mut model = generate::model(random, v6, now_s());
        let SourcePorts { first, count, reused_first, reused_count, .. } = self.ports;
        (model.ports, model.reused) = ((first, first + (count - 1)), (reused_first, reused_first + (reused_count - 1)));
        model.routes = Some(self.routes.clone());
        let room = ROOM as usize;
        (model.room, model.others) = (ROOM, *random.of(&[0, 0, room - 1, room]));
        let clients = [(address(v6, 1, 1), Client::Near), (address(v6, 5, 1), Client::Outside)];
        model.holder = random.one_in(2).then(|| *random.of(&clients));
        generate::set_addresses(random, v6, &mut model, self.routes.links());
        // None, over, or open for longer than a run takes.
        model.adoption_until_s = *random.of(&[0, model.now_s - 1, model.now_s + 3_600]);
        model
    }

    /// One model of one family with this many packets.
    pub fn random_packets(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.programs.clear()?;
        self.counters.clear();
        let mut model = self.generate(&mut random, v6);
        tables::write(&mut self.programs, &model)?;
        for number in 0..packets {
            let go_on = self
                .packet(&mut random, v6, &mut model)
                .with_context(|| format!("seed {seed}, {}, packet {number}", if v6 { "IPv6" } else { "IPv4" }))?;
            if !go_on {
                break;
            }
        }
        Ok(())
    }

    /// One model that broken packets are sent to: what comes out is never misdelivered, and counted.
    pub fn broken(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.programs.clear()?;
        let model = self.generate(&mut random, v6);
        tables::write(&mut self.programs, &model)?;
        for number in 0..packets {
            let (hook, frame) = traffic::packet(&mut random, v6, &model);
            let bytes = traffic::broken(&mut random, &frame);
            let before: u64 = self.programs.outcomes()?.iter().sum();
            let Some(ran) = self.programs.run_at(hook, self.routes.seen_at(hook), &bytes)? else {
                self.tally.refused_by_kernel += 1;
                continue;
            };
            let counts = self.programs.outcomes()?.iter().sum::<u64>() - before;
            self.programs.take_events();
            self.tally.packets += 1;
            judge_broken(&model, hook, &frame, &bytes, &ran, counts).with_context(|| {
                format!("seed {seed}, packet {number}: {hook:?} {frame:?}\nbroken: {bytes:02x?}\nran: {ran:02x?}")
            })?;
        }
        Ok(())
    }

    /// A change or two, then a packet. `false`: the clock reached its next second meanwhile, so the expected outcome is unknown.
    fn packet(&mut self, random: &mut Random, v6: bool, model: &mut Model) -> Result<bool> {
        self.change(random, model)?;
        ageing::age(&mut self.programs, model, *random.of(&AGES_S))?;
        let (hook, frame) = traffic::packet(random, v6, model);
        let bytes = frame.bytes();
        tables::count_clients(&self.programs, v6, model, &mut self.counters);
        let before = self.programs.outcomes()?;
        let start = now_s();
        model.now_s = start;
        let Some(ran) = self.programs.run_at(hook, self.routes.seen_at(hook), &bytes)? else {
            self.tally.refused_by_kernel += 1;
            return Ok(true);
        };
        let after = self.programs.outcomes()?;
        let sent =
            entries::sent(&self.programs, (tables::number(frame.protocol), frame.src, frame.dst), frame.sequence);
        let effects = SideEffects { stats: self.programs.take_stats()?, events: self.programs.take_events(), sent };
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
            || format!("{hook:?} {frame:?}\nran: verdict {}, counted {counted:?}\nworld: {model:#?}", ran.verdict);
        let told = story();
        judge(model, hook, &frame, &bytes, &ran, &counted, &effects).with_context(|| told.clone())?;
        tables::note_clients(v6, model, &mut self.counters);
        entries::compare(&self.programs, model).context(told)?;
        for outcome in counted {
            *self.tally.outcomes.entry(outcome.name()).or_default() += 1;
        }
        Ok(true)
    }

    /// What the agent does, and what a full table does.
    fn change(&mut self, random: &mut Random, model: &mut Model) -> Result<()> {
        if random.one_in(6) && !model.backends.is_empty() {
            let ids: Vec<u32> = model.backends.keys().copied().collect();
            let id = *random.of(&ids);
            let backend = model.backends.get_mut(&id).context("one of them")?;
            generate::change_backend(random, backend);
            tables::write_backend(&mut self.programs, id, backend, model.now_s)?;
        }
        if random.one_in(6) && !model.backends.is_empty() {
            let ids: Vec<u32> = model.backends.keys().copied().collect();
            self.meets_silence(model, *random.of(&ids), random.one_in(12))?;
        }
        if random.one_in(16) {
            adopted::change(random, &mut self.programs, model)?;
        }
        let openings = model.connections.iter().filter_map(|connection| connection.opening.as_ref());
        let left: Vec<u32> = openings.flat_map(|opening| &opening.tried).map(|(id, _)| *id).collect();
        if !left.is_empty() && random.one_in(2) {
            self.meets_silence(model, *random.of(&left), false)?;
        }
        if random.one_in(12) && !model.services.is_empty() {
            let keys: Vec<_> = model.services.keys().copied().collect();
            let key = *random.of(&keys);
            generate::rewrite_service(random, model, key);
            tables::write_service(&mut self.programs, key.0, key.1, &model.services[&key])?;
            if random.one_in(8) {
                model.services.remove(&key);
                tables::remove_service(&mut self.programs, key.0, key.1)?;
            }
        }
        if random.one_in(10) && !model.connections.is_empty() {
            let at = random.below(model.connections.len());
            let connection = &mut model.connections[at];
            let (protocol, half_open) = (tables::number(connection.protocol), connection.opening.is_some());
            // A claim outlives the entries: two attempts of one client are then mixed, which this model does not follow. The rules of retries
            // show what becomes of them.
            let is_claimed = model
                .claims
                .iter()
                .any(|claim| (claim.winner.client, claim.winner.target) == (connection.client, connection.target));
            if is_claimed {
                return Ok(());
            }
            let is_beside = connection.is_beside;
            if random.one_in(2) && connection.forward.take().is_some() {
                // The other half knows nothing of what was begun beside it.
                connection.has_beside = false;
                let asks = (protocol, connection.client, connection.target);
                ageing::remove(&mut self.programs, asks, half_open, is_beside)?;
            } else if connection.reply.take().is_some() {
                let answers = (protocol, connection.answerer, connection.seen_client);
                ageing::remove(&mut self.programs, answers, half_open, false)?;
            }
            model.tidy();
        }
        Ok(())
    }

    /// Somebody whom no packet of the run comes from has met the backend silent, and so has everybody; others before.
    fn meets_silence(&mut self, model: &mut Model, id: u32, before: bool) -> Result<()> {
        let (now_s, backend) = (model.now_s, &model.backends[&id]);
        let (generation, v6) = (backend.generation, backend.address.is_ipv6());
        let mut health = model.health(id);
        health.evidence_client = Some((Ipv4Addr::UNSPECIFIED.into(), now_s));
        health.answered_s = None;
        health.ejected_s = health.ejected_s.or_else(|| before.then_some(now_s));
        let table = if v6 { &mut self.programs.state6.health } else { &mut self.programs.state4.health };
        let held = table.get(&id, 0)?;
        let known = if held.generation == generation { held } else { Health { generation, ..Default::default() } };
        let ejected_s = health.ejected_s.unwrap_or_default();
        table.set(id, Health { evidence_client: 1, evidence_s: now_s, answered_s: 0, ejected_s, ..known }, 0)?;
        model.health.insert(id, health);
        Ok(())
    }
}

/// The clock that the programs read.
fn now_s() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("the clock is there");
    u32::try_from(now.tv_sec()).expect("136 years of uptime")
}
