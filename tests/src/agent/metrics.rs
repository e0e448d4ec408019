//! Values of the agent's metrics page.

use anyhow::{Context as _, Result};
use lb_common::outcome::Outcome;

use super::Agent;

impl Agent {
    /// The value of a metric, `None` if the page lacks it. `labels` is the text of one label (`table="flows4"`), or empty.
    pub fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        value(&self.metrics().ok()?, name, labels)
    }

    /// How often the node's programs had this outcome.
    pub fn counted(&self, outcome: Outcome) -> Result<u64> {
        let page = self.metrics()?;
        let value = value(&page, "ballast_outcomes_total", &format!("outcome=\"{}\"", outcome.name()));
        let value = value.with_context(|| format!("no counter of {} in:\n{page}", outcome.name()))?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A counter, below 2^53.
        Ok(value as u64)
    }
}

fn value(page: &str, name: &str, labels: &str) -> Option<f64> {
    let is_it =
        |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])) && line.contains(labels);
    page.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn a_value_is_found_by_its_whole_name_and_its_label() {
        let page = "a_total{x=\"1\"} 3.0\na_total{x=\"2\"} 4\na 5\n";
        assert_eq!(value(page, "a_total", "x=\"2\""), Some(4.0));
        assert_eq!(value(page, "a", ""), Some(5.0));
        assert_eq!(value(page, "a_tot", ""), None);
        assert_eq!(value(page, "a_total", "x=\"3\""), None);
    }
}
