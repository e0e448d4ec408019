//! Frames over the wires: all arms take turns, there and back, round by round.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use serde::Serialize;

use super::FAMILIES;
use super::fixture::{Arm, Fixture, KUBE_PROXY};
use crate::statistics::Samples;

/// A ratio of two arms' rates, round by round: its median, and where that lies with a probability of 95 %.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub interval: [f64; 2],
}

/// One arm.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub family: &'static str,
    pub arm: &'static str,
    /// Time of one frame with all the work of its way, that of the generator and of the end included: median of the rounds.
    pub ns: f64,
    /// Frames per second on one CPU.
    pub rate: f64,
    /// Rate by that of plain forwarding to the same place.
    pub to_plain: Ratio,
    /// Rate by that of kube-proxy, if it ran and does the same.
    pub to_kube_proxy: Option<Ratio>,
    /// Rate by that of the arm before: for the same arm twice, noise.
    pub to_previous: Option<Ratio>,
    /// Frames that did not arrive, in all rounds.
    pub lost: u64,
    pub frames: u64,
}

/// Nanoseconds of a frame in each round, and the frames that were lost.
struct Row {
    arm: Arm,
    family: usize,
    ns: Vec<f64>,
    lost: u64,
    frames: u64,
}

pub fn measure(fixture: &mut Fixture, rounds: u32, count: u32, stop: &AtomicBool) -> Result<Vec<Figures>> {
    fixture.warm_up(stop)?;
    let arms = fixture.arms();
    let mut rows: Vec<Row> = (0..FAMILIES.len())
        .flat_map(|family| arms.iter().map(move |arm| Row { arm: *arm, family, ns: Vec::new(), lost: 0, frames: 0 }))
        .collect();
    for round in 0..=rounds {
        let mut times = vec![0.0; rows.len()];
        // There and back: what drifts falls on all arms alike.
        for index in (0..rows.len()).chain((0..rows.len()).rev()) {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let row = &mut rows[index];
            let burst = fixture.burst(&row.arm, row.family, count)?;
            let arrived = u32::try_from(burst.arrived)?;
            times[index] += burst.time.as_secs_f64() * 1e9 / f64::from(arrived.max(1)) / 2.0;
            // The first round warms up.
            if round > 0 {
                row.lost += u64::from(burst.sent.saturating_sub(arrived));
                row.frames += u64::from(burst.sent);
            }
        }
        if round > 0 {
            for (row, ns) in rows.iter_mut().zip(times) {
                row.ns.push(ns);
            }
        }
    }
    Ok((0..rows.len()).map(|index| figures(&rows, index)).collect())
}

fn figures(rows: &[Row], index: usize) -> Figures {
    let row = &rows[index];
    let of = |name: &str| rows.iter().find(|other| other.family == row.family && other.arm.name == name);
    let ns = row.ns.iter().copied().collect::<Samples>().median();
    let is_node_port = row.arm.name.contains("masquerade") || row.arm.name.contains("first node");
    let previous = index.checked_sub(1).map(|index| &rows[index]).filter(|other| other.arm.path == row.arm.path);
    Figures {
        family: FAMILIES[row.family],
        arm: row.arm.name,
        ns,
        rate: 1e9 / ns,
        to_plain: of(row.arm.plain).map_or(Ratio { median: f64::NAN, interval: [f64::NAN; 2] }, |o| ratio(row, o)),
        to_kube_proxy: of(KUBE_PROXY).filter(|_| is_node_port).map(|other| ratio(row, other)),
        to_previous: previous.map(|other| ratio(row, other)),
        lost: row.lost,
        frames: row.frames,
    }
}

/// Rate of the one by that of the other: the other's time by the one's.
fn ratio(one: &Row, other: &Row) -> Ratio {
    let samples: Samples = one.ns.iter().zip(&other.ns).map(|(one, other)| other / one).collect();
    Ratio { median: samples.median(), interval: samples.interval() }
}
