//! The agent is killed on its way from one set of tables to another; the next start, of either side, goes on or back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use lb_tests::agent::START;
use lb_tests::peers::eventually;
use lb_tests::random::Random;
use lb_tests::steps::Step;

use super::{Scene, Side, is_long, part, settled};

/// What makes the set, what puts a gate or a program at a hook, what puts the set in force, what moves connections, what removes.
const PARTS: [&[&str]; 5] = [
    &["make", "pin", "update many", "link"],
    &["replace program of", "load", "update switch_"],
    &["update switch_word", "rename"],
    &["update flows", "update udp_flows", "update half_open", "update sockets", "take from"],
    &["remove"],
];

/// In the short form the agent is killed at so many steps at most.
const TRIED_MAX: usize = 12;

/// One of the steps that begin so. All kinds are alike, however many there are of each.
fn one(random: &mut Random, all: &[Step], begins: &[&str]) -> Option<Step> {
    let kinds = kinds(all, begins, |what| what);
    let names: Vec<&String> = kinds.keys().collect();
    let alike = names.get(random.below(names.len().max(1))).and_then(|name| kinds.get(*name))?;
    Some((*random.of(alike)).clone())
}

/// What a step does, without the map, file or program that it does it to. All maps are made, pinned, filled and removed alike, those of both
/// families included. All programs are loaded and attached alike.
fn coarse(what: &str) -> &str {
    [
        "make map",
        "pin map",
        "pin link",
        "update many",
        "load",
        "attach by type",
        "replace program of",
        "remove",
        "create",
        "netlink",
    ]
    .into_iter()
    .find(|begin| what.starts_with(begin))
    .unwrap_or_else(|| what.trim_end_matches(['4', '6']))
}

fn kinds<'a>(all: &'a [Step], begins: &[&str], kind: fn(&str) -> &str) -> BTreeMap<String, Vec<&'a Step>> {
    let mut kinds: BTreeMap<String, Vec<&Step>> = BTreeMap::new();
    for step in all.iter().filter(|step| begins.iter().any(|begin| step.what.starts_with(begin))) {
        kinds.entry(kind(&step.what).to_owned()).or_default().push(step);
    }
    kinds
}

/// Where the agent is killed, by turns: once on the way, and once more at the start after it. In the long form: at the first step of each
/// [`coarse`] kind, at one in the middle, and at the last.
fn kills(random: &mut Random, steps: &[Step], parts: &[usize]) -> VecDeque<Vec<Step>> {
    if !is_long() {
        let part = *random.of(parts);
        let once = one(random, steps, PARTS[part]).map(|step| vec![step]);
        let twice = [PARTS[1], PARTS[3]].iter().filter_map(|part| one(random, steps, part)).collect();
        return once.into_iter().chain([twice]).collect();
    }
    let (nth, of) = part();
    let some = |alike: Vec<&Step>| {
        let mut nth = vec![0, alike.len() / 2, alike.len() - 1];
        nth.dedup();
        nth.into_iter().map(|index| vec![alike[index].clone()]).collect::<Vec<_>>()
    };
    let kinds = kinds(steps, &[""], coarse);
    println!("{} kinds of {} steps: {:?}", kinds.len(), steps.len(), kinds.keys());
    let all = kinds.into_values().flat_map(some);
    all.enumerate().filter(|(index, _)| index % of + 1 == nth).map(|(_, kill)| kill).collect()
}

/// Starts an agent of this side; waits until its tables alone are left, or it was killed at its step.
fn start(scene: &Scene, side: &Side, kill_at: Option<&Step>) -> (bool, Vec<Step>) {
    let mut agent = scene.agent(side);
    let stepped = agent.launch_stepped(kill_at.cloned()).unwrap();
    eventually(&format!("{side:?}: ready with one set of tables, or killed"), START, || {
        (!stepped.is_alive() || (agent.is_ready() && settled(&scene.root()).is_some())).then_some(())
    });
    assert!(stepped.is_alive() || kill_at.is_some(), "the agent ended by itself:\n{}", agent.log());
    let steps = stepped.steps();
    let reached = stepped.end().unwrap();
    std::mem::forget(agent); // The next one cleans up.
    (reached, steps)
}

/// Kills the agent on its way between two of these sides, at steps of these [`PARTS`]. The start after it is of any side: of one of the two, or of a
/// third one that knows neither set.
pub fn between(subject: &str, sides: &[Side], parts: &[usize]) {
    let scene = Scene::new(subject);
    start(&scene, &sides[0], None);
    let traffic = scene.traffic();
    traffic.check("before");
    let (_, steps) = start(&scene, &sides[1], None);
    traffic.check("a whole switch");
    let (mut random, mut reached, mut in_force) = (Random::new(lb_seed::of_run()), Vec::new(), 1);
    let mut kills = kills(&mut random, &steps, parts);
    let begin = Instant::now();
    let few_came = |reached: &[(String, bool)]| reached.iter().filter(|(_, came)| *came).count() * 2 < reached.len();
    while let Some(chain) = kills.pop_front() {
        let to = another(&mut random, sides.len(), in_force);
        for step in &chain {
            let is_reached = start(&scene, &sides[to], Some(step)).0;
            reached.push((step.to_string(), is_reached));
            traffic.check(&format!("killed at `{step}` on the way to {:?}", sides[to]));
        }
        in_force = random.below(sides.len());
        start(&scene, &sides[in_force], None);
        traffic.check(&format!("the start of {:?} after {chain:?} on the way to {:?}", sides[in_force], sides[to]));
        println!(
            "{} chains are left after {:?}: {chain:?}, {:?} answers",
            kills.len(),
            begin.elapsed(),
            traffic.answers()
        );
        // Some steps depend on time: others follow until most have come again.
        if kills.is_empty() && few_came(&reached) && reached.len() < TRIED_MAX {
            kills.extend(one(&mut random, &steps, PARTS[0]).map(|step| vec![step]));
        }
    }
    println!("{reached:?}");
    assert!(!few_came(&reached), "of these steps few came again: {reached:?}");
    drop(traffic);
    // Cleans up.
    drop(scene.agent(&sides[0]));
}

/// A side that is not this one.
fn another(random: &mut Random, sides: usize, this: usize) -> usize {
    (this + 1 + random.below(sides - 1)) % sides
}
