//! Metrics that are read, not counted: what the maps, the agent's report and the kernel say, as series. Pure.

mod process;
mod report;
mod tables;

pub use process::of_process;
pub use report::of_report;
pub use tables::{of_omitted, of_outcomes, of_services, of_states};

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The name is written without `_total`.
    Counter,
    Gauge,
    Histogram,
}

/// A metric with all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    /// Those of a histogram are in `histograms`.
    pub points: Vec<(Labels, f64)>,
    pub histograms: Vec<(Labels, Distribution)>,
}

/// What a histogram has counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub sum: f64,
    /// Upper bound and count of each bucket, those below it not included. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

/// Names and values.
pub type Labels = Vec<(&'static str, String)>;

fn series(name: &'static str, help: &'static str, kind: MetricKind, points: Vec<(Labels, f64)>) -> Series {
    Series { name, help, kind, points, histograms: Vec::new() }
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Series {
    series(name, help, MetricKind::Gauge, vec![(Vec::new(), value)])
}

/// A gauge without a point where there is no value.
fn optional(name: &'static str, help: &'static str, value: Option<f64>) -> Series {
    series(name, help, MetricKind::Gauge, value.map(|value| (Vec::new(), value)).into_iter().collect())
}

fn truth(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in floats; exact up to 2^53")]
fn precise(number: u64) -> f64 {
    number as f64
}

fn count(number: usize) -> f64 {
    precise(number as u64)
}

/// The value of the series that has the label, whatever its name.
#[cfg(test)]
fn value(all: &[Series], name: &str, label: &str) -> Option<f64> {
    let found = all.iter().find(|series| series.name == name)?;
    found.points.iter().find(|(labels, _)| labels.iter().any(|(_, text)| text == label)).map(|(_, value)| *value)
}
