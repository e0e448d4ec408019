//! What `/metrics` can have: a registry that remembers the description of each metric, also of those without a series yet.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

use super::series::{MetricKind, Series};

/// A metric as `/metrics` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// A counter's ends in `_total`. The series of a histogram end in `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    pub help: &'static str,
}

/// A registry under construction.
#[derive(Debug, Default)]
pub struct Catalogue {
    pub registry: Registry,
    /// In the order of registration.
    pub descriptions: Vec<Description>,
}

impl Catalogue {
    /// As [`Registry::register`]: a counter's name is written without `_total`.
    pub fn register(&mut self, name: &'static str, help: &'static str, metric: impl Metric) {
        let kind = metric.metric_type();
        let end = if matches!(kind, MetricType::Counter) { "_total" } else { "" };
        self.descriptions.push(Description { name: format!("{name}{end}"), kind: kind.as_str().to_owned(), help });
        self.registry.register(name, help, metric);
    }
}

impl Series {
    pub fn description(&self) -> Description {
        let (end, kind) = match self.kind {
            MetricKind::Counter => ("_total", "counter"),
            MetricKind::Gauge => ("", "gauge"),
            MetricKind::Histogram => ("", "histogram"),
        };
        Description { name: format!("{}{end}", self.name), kind: kind.to_owned(), help: self.help }
    }
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
