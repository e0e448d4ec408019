//! A result beside an earlier one: what has become worse by more than noise.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::figures::{Better, Figure, short};

/// Figures without an interval (a start, a number of bytes) may differ by this share.
const SLACK: f64 = 0.1;
/// Ratios may differ by this share even where their intervals are narrower: from run to run code and tables lie elsewhere in memory.
const LEAST: f64 = 0.03;

/// What is measured twice is called so.
const AGAIN: &str = "again";

/// One figure that has become worse.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    pub name: String,
    pub before: f64,
    pub now: f64,
}

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} before, {} now", self.name, short(self.before), short(self.now))
    }
}

/// Reads the figures of an earlier result.
pub fn read(file: &Path) -> Result<Vec<Figure>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let value: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let figures = value.get("figures").cloned();
    let figures = figures.with_context(|| format!("{} has no figures: expected what --json wrote", file.display()))?;
    let figures: Vec<Figure> = serde_json::from_value(figures).with_context(|| file.display().to_string())?;
    ensure!(!figures.is_empty(), "{} has no figures: expected what --json wrote", file.display());
    Ok(figures)
}

/// The figures that both have and that have become worse: beyond the noise of their kind, and beyond the intervals of both.
pub fn regressions(before: &[Figure], now: &[Figure]) -> Vec<Regression> {
    let pairs = now.iter().filter_map(|now| Some((before.iter().find(|before| before.name == now.name)?, now)));
    let worse = pairs.filter(|(one, other)| {
        let noise = noise(before, &one.name).max(noise(now, &other.name));
        is_worse(one, other, noise.max(LEAST))
    });
    worse.map(|(before, now)| Regression { name: now.name.clone(), before: before.value, now: now.value }).collect()
}

fn is_worse(before: &Figure, now: &Figure, noise: f64) -> bool {
    let margin = if before.interval.is_some() && now.interval.is_some() { noise } else { noise.max(SLACK) };
    let [before_low, before_high] = before.interval.unwrap_or([before.value; 2]);
    let [now_low, now_high] = now.interval.unwrap_or([now.value; 2]);
    match now.better {
        Better::More => now.value < before.value * (1.0 - margin) && now_high < before_low,
        Better::Less => now.value > before.value * (1.0 + margin) && now_low > before_high,
    }
}

/// How far the same thing measured twice lies apart, at most, in figures of the same kind as this one: the share by which it is noise.
pub fn noise(figures: &[Figure], name: &str) -> f64 {
    let twice = figures.iter().filter(|figure| figure.name.contains(AGAIN) && kind(&figure.name) == kind(name));
    twice.map(|figure| (figure.value - 1.0).abs()).fold(0.0, f64::max)
}

/// What is measured, which a name begins with, and whether it is about the slowest.
fn kind(name: &str) -> (&str, bool) {
    (name.split([',', ':']).next().unwrap_or_default(), name.ends_with("p99"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64, spread: f64) -> Figure {
        let interval = Some([value - spread, value + spread]);
        Figure { interval, ..Figure::single("connect, tc / direct", value, "", Better::More) }
    }

    fn twice(name: &str, value: f64) -> Figure {
        Figure { name: name.into(), ..rate(value, 0.0) }
    }

    #[test]
    fn worse_is_beyond_noise_and_intervals() {
        let told = |before, now| regressions(&[before], &[now]).len();
        assert_eq!(told(rate(1.0, 0.01), rate(0.9, 0.01)), 1, "ten percent");
        assert_eq!(told(rate(1.0, 0.01), rate(1.1, 0.01)), 0, "better");
        assert_eq!(told(rate(1.0, 0.01), rate(0.98, 0.001)), 0, "less than code and tables make");
        assert_eq!(told(rate(1.0, 0.06), rate(0.9, 0.06)), 0, "within the intervals");
        let time = |value| Figure::single("time", value, "s", Better::Less);
        assert_eq!(told(time(1.0), time(1.05)), 0, "measured once: within the slack");
        assert_eq!(told(time(1.0), time(1.2)), 1);
        let other = Figure { name: "another".into(), ..rate(0.1, 0.0) };
        assert_eq!(told(rate(1.0, 0.01), other), 0, "what only one has is not compared");
    }

    #[test]
    fn the_same_thing_twice_is_the_noise_of_its_kind() {
        let noisy = twice("connect, direct, again / direct", 1.15);
        let found = regressions(&[rate(1.0, 0.01)], &[rate(0.9, 0.01), noisy.clone()]);
        assert!(found.is_empty(), "{found:?}");
        let others = [twice("stream, direct, again / direct", 1.5), twice("connect, direct, again / direct, p99", 1.5)];
        assert!((noise(&[&[noisy], &others[..]].concat(), "connect, tc / direct") - 0.15).abs() < 1e-9);
        assert!((noise(&others, "connect, tc / direct, p99") - 0.5).abs() < 1e-9);
        assert!(noise(&[], "connect").abs() < 1e-9);
    }

    #[test]
    fn an_earlier_result_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("before.json");
        std::fs::write(&file, serde_json::json!({"figures": [rate(1.0, 0.1)]}).to_string()).expect("written");
        assert_eq!(read(&file).expect("read"), [rate(1.0, 0.1)]);
        std::fs::write(&file, "{}").expect("written");
        assert!(read(&file).expect_err("nothing in it").to_string().contains("has no figures"));
    }
}
