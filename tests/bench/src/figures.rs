//! Figures: what every bench comes to in the end, so that goals and results know one kind of thing.

use serde::Serialize;
use serde_json::Value;

use crate::statistics::Samples;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Better {
    More,
    Less,
}

/// What a figure ought to be, and which of the goals that is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// 1 to 13, see [`crate::targets`].
    pub target: u8,
    pub value: f64,
}

/// One figure. Its name is the same in each run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    pub name: String,
    pub value: f64,
    /// Empty for a ratio.
    pub unit: String,
    pub better: Better,
    /// Where the median lies with a probability of 95 %, if there were rounds.
    pub interval: Option<[f64; 2]>,
    pub goal: Option<Goal>,
}

impl Figure {
    /// A ratio, measured once in each round.
    pub fn ratio(name: impl Into<String>, samples: &Samples, better: Better) -> Self {
        let interval = Some(samples.interval());
        Self { name: name.into(), value: samples.median(), unit: String::new(), better, interval, goal: None }
    }

    /// A figure that was measured once, or is a sum of what was.
    pub fn single(name: impl Into<String>, value: f64, unit: &str, better: Better) -> Self {
        Self { name: name.into(), value, unit: unit.into(), better, interval: None, goal: None }
    }

    /// With the goal of a target.
    #[must_use]
    pub fn aims(mut self, target: u8, value: f64) -> Self {
        self.goal = Some(Goal { target, value });
        self
    }

    /// Whether it is as good as its goal; a figure that is no number is not.
    pub fn is_reached(&self) -> Option<bool> {
        let goal = self.goal?.value;
        Some(match self.better {
            Better::More => self.value >= goal,
            Better::Less => self.value <= goal,
        })
    }

    /// The value with its interval, for people.
    pub fn text(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match self.interval {
            Some([low, high]) => format!("{} ({} – {}){unit}", short(self.value), short(low), short(high)),
            None => format!("{}{unit}", short(self.value)),
        }
    }

    /// The goal, for people.
    pub fn goal_text(&self) -> String {
        let Some(goal) = self.goal else { return String::new() };
        let sign = if self.better == Better::More { '≥' } else { '≤' };
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{sign} {}{unit}", short(goal.value))
    }
}

/// A number with as many digits as tell something.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 0.1 => format!("{value:.4}"),
        small if small < 10.0 => format!("{value:.3}"),
        middle if middle < 1_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// What one bench found.
#[derive(Clone, Debug)]
pub struct Part {
    pub bench: &'static str,
    pub figures: Vec<Figure>,
    /// All that is behind the figures.
    pub details: Value,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

impl Part {
    /// As it is written to a file.
    pub fn json(&self) -> Value {
        let mut value = self.details.clone();
        value["bench"] = self.bench.into();
        value["figures"] = serde_json::to_value(&self.figures).unwrap_or_default();
        value["leftOut"] = self.left_out.clone().into();
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_reached_from_their_side() {
        let rate = Figure::single("rate", 1.0, "", Better::More);
        assert_eq!(rate.is_reached(), None);
        assert_eq!(rate.clone().aims(1, 1.0).is_reached(), Some(true));
        assert_eq!(rate.aims(1, 1.1).is_reached(), Some(false));
        let time = Figure::single("time", 5.5, "ms", Better::Less);
        assert_eq!(time.clone().aims(6, 5.0).is_reached(), Some(false));
        assert_eq!(time.clone().aims(6, 6.0).is_reached(), Some(true));
        assert_eq!(Figure { value: f64::NAN, ..time.aims(6, 6.0) }.is_reached(), Some(false));
    }

    #[test]
    fn people_read_few_digits() {
        let figure = Figure::ratio("ratio", &[1.0, 1.1, 1.2].into_iter().collect(), Better::More).aims(1, 1.0);
        assert_eq!(figure.goal_text(), "≥ 1.000");
        assert!(figure.text().starts_with("1.100 (1.000 – 1.200)"), "{}", figure.text());
        assert_eq!(Figure::single("bytes", 1_234.4, "B", Better::Less).text(), "1234 B");
    }
}
