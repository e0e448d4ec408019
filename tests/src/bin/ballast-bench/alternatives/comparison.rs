//! Arms that take turns, there and back, and what came of it.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use serde::Serialize;

use crate::figures::{Better, Figure};
use crate::statistics::Samples;

/// Several ways of doing one thing. The first arm is how Ballast does it; all others are compared with it.
#[derive(Debug)]
pub struct Comparison {
    /// What is done, and to what.
    name: String,
    unit: &'static str,
    better: Better,
    /// Names of the arms, and their figures in each round.
    arms: Vec<(&'static str, Vec<f64>)>,
}

/// One arm, for people and programs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub what: String,
    pub arm: &'static str,
    pub unit: &'static str,
    /// Median of the rounds.
    pub value: f64,
    /// The median of its ratios to the first arm, one for each round, and where it lies with 95 %.
    pub ratio: f64,
    pub interval: [f64; 2],
}

impl Comparison {
    pub fn new(name: impl Into<String>, unit: &'static str, arms: &[&'static str]) -> Self {
        let arms = arms.iter().map(|arm| (*arm, Vec::new())).collect();
        Self { name: name.into(), unit, better: if unit == "/s" { Better::More } else { Better::Less }, arms }
    }

    /// One round: every arm by its number, there and back.
    pub fn round(&mut self, counts: bool, stop: &AtomicBool, mut run: impl FnMut(usize) -> Result<f64>) -> Result<()> {
        let mut sums = vec![0.0; self.arms.len()];
        for arm in (0..self.arms.len()).chain((0..self.arms.len()).rev()) {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            sums[arm] += run(arm)? / 2.0;
        }
        if counts {
            self.push(&sums);
        }
        Ok(())
    }

    /// One figure for each arm.
    pub fn push(&mut self, figures: &[f64]) {
        for ((_, samples), figure) in self.arms.iter_mut().zip(figures) {
            samples.push(*figure);
        }
    }

    fn ratios(&self, arm: usize) -> Samples {
        self.arms[arm].1.iter().zip(&self.arms[0].1).map(|(this, first)| this / first).collect()
    }

    pub fn rows(&self) -> Vec<Row> {
        let row = |(number, (arm, samples)): (usize, &(&'static str, Vec<f64>))| {
            let ratios = self.ratios(number);
            Row {
                what: self.name.clone(),
                arm,
                unit: self.unit,
                value: samples.iter().copied().collect::<Samples>().median(),
                ratio: ratios.median(),
                interval: ratios.interval(),
            }
        };
        self.arms.iter().enumerate().map(row).collect()
    }

    pub fn figures(&self) -> Vec<Figure> {
        let figure = |arm: usize| {
            Figure::ratio(format!("{}: {} / as it is", self.name, self.arms[arm].0), &self.ratios(arm), self.better)
        };
        (1..self.arms.len()).map(figure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_there_and_back_and_the_first_one_is_the_measure() {
        let mut comparison = Comparison::new("insert", "ns", &["now", "other"]);
        let (never, mut order) = (AtomicBool::new(false), Vec::new());
        for round in 0..3 {
            comparison
                .round(round > 0, &never, |arm| {
                    order.push(arm);
                    Ok(if arm == 0 { 10.0 } else { 20.0 })
                })
                .expect("nothing fails");
        }
        assert_eq!(order, [0, 1, 1, 0].repeat(3));
        let rows = comparison.rows();
        assert!((rows[1].value - 20.0).abs() < 1e-9 && (rows[1].ratio - 2.0).abs() < 1e-9);
        assert_eq!(comparison.figures()[0].name, "insert: other / as it is");
        assert_eq!(comparison.arms[0].1.len(), 2, "the first round warms up");
    }

    #[test]
    fn an_interrupted_round_is_none() {
        let mut comparison = Comparison::new("insert", "ns", &["now"]);
        assert!(comparison.round(true, &AtomicBool::new(true), |_| Ok(1.0)).is_err());
        assert!(comparison.arms[0].1.is_empty());
    }
}
