//! The metrics registry: what the agent counts itself, and the series read at each scrape. Names of kube-proxy, and ours.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use lb_common::outcome::Outcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::{MetricType, TypedMetric as _};
use prometheus_client::registry::Registry;

use super::health::Probe;
use super::series::{Kind, Series};

type Label = [(&'static str, String); 1];

/// The agent's metrics. Clones share their counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    sync_duration: Histogram,
    last_sync: Gauge<f64, std::sync::atomic::AtomicU64>,
    writes: Counter,
    failures: Counter,
    calls: Counter,
    healthz: Family<Label, Counter>,
    livez: Family<Label, Counter>,
    readyz: Family<Label, Counter>,
    events: Family<Label, Counter>,
}

impl Metrics {
    /// `read` gives the series to add at each scrape.
    pub fn new(read: impl Fn() -> Vec<Series> + Send + Sync + 'static) -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            // 1 ms to 16 s, as kube-proxy.
            sync_duration: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            last_sync: Gauge::default(),
            writes: Counter::default(),
            failures: Counter::default(),
            calls: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
            readyz: Family::default(),
            events: Family::default(),
        };
        metrics.registry = Arc::new(metrics.register(Box::new(Readings { read: Box::new(read) })));
        metrics
    }

    fn register(&self, readings: Box<Readings>) -> Registry {
        let mut registry = Registry::default();
        let duration = "Seconds that one pass over the tables took";
        registry.register("kubeproxy_sync_proxy_rules_duration_seconds", duration, self.sync_duration.clone());
        let last = "When the tables were last in step with the source, in seconds since the epoch";
        registry.register("kubeproxy_sync_proxy_rules_last_timestamp_seconds", last, self.last_sync.clone());
        registry.register("kubeproxy_proxy_healthz", "Answers of /healthz by code", self.healthz.clone());
        registry.register("kubeproxy_proxy_livez", "Answers of /livez by code", self.livez.clone());
        registry.register("ballast_readyz", "Answers of /readyz by code", self.readyz.clone());
        registry.register("ballast_table_writes", "Operations carried out on the tables", self.writes.clone());
        registry.register("ballast_table_failures", "Operations on the tables that failed", self.failures.clone());
        registry.register("ballast_table_calls", "System calls made for the tables", self.calls.clone());
        registry.register("ballast_events", "Records read from the event ring by outcome", self.events.clone());
        registry.register_collector(readings);
        registry
    }

    /// A pass over the tables is over.
    pub fn synced(&self, took: Duration, writes: usize, failures: usize) {
        self.sync_duration.observe(took.as_secs_f64());
        self.writes.inc_by(writes as u64);
        self.failures.inc_by(failures as u64);
    }

    /// So many system calls were made for the tables since the start.
    pub fn called(&self, total: u64) {
        self.calls.inner().store(total, std::sync::atomic::Ordering::Relaxed);
    }

    /// The tables are in step with the source.
    pub fn in_step(&self, seconds_since_epoch: f64) {
        self.last_sync.set(seconds_since_epoch);
    }

    /// A probe was answered.
    pub fn probed(&self, probe: Probe, code: StatusCode) {
        let family = match probe {
            Probe::Healthz => &self.healthz,
            Probe::Livez => &self.livez,
            Probe::Readyz => &self.readyz,
        };
        family.get_or_create(&[("code", code.as_u16().to_string())]).inc();
    }

    /// A record of the event ring was read.
    pub fn event(&self, outcome: Outcome) {
        self.events.get_or_create(&[("outcome", outcome.name().to_owned())]).inc();
    }

    /// Everything, as Prometheus reads it.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail; a collector's series are plain data.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

struct Readings {
    read: Box<dyn Fn() -> Vec<Series> + Send + Sync>,
}

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readings")
    }
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for series in (self.read)() {
            let kind = match series.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => ConstGauge::<f64>::TYPE,
            };
            let mut metric = encoder.encode_descriptor(series.name, series.help, None, kind)?;
            for (labels, value) in &series.points {
                match (series.kind, labels.is_empty()) {
                    (Kind::Counter, _) => ConstCounter::new(*value).encode(metric.encode_family(labels)?)?,
                    (Kind::Gauge, false) => ConstGauge::new(*value).encode(metric.encode_family(labels)?)?,
                    // A family without labels would be written with empty braces.
                    (Kind::Gauge, true) => metric.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_and_read_metrics_are_in_one_text() {
        let metrics = Metrics::new(|| {
            let labels = vec![("outcome", "selected".into())];
            vec![
                Series { name: "ballast_outcomes", help: "", kind: Kind::Counter, points: vec![(labels, 3.0)] },
                Series { name: "ballast_ready", help: "", kind: Kind::Gauge, points: vec![(Vec::new(), 1.0)] },
            ]
        });
        metrics.probed(Probe::Healthz, StatusCode::SERVICE_UNAVAILABLE);
        metrics.event(Outcome::Evicted);
        metrics.synced(Duration::from_millis(3), 12, 1);
        let text = metrics.encode();
        for line in [
            "ballast_outcomes_total{outcome=\"selected\"} 3.0",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
            "ballast_events_total{outcome=\"evicted\"} 1",
            "ballast_table_writes_total 12",
            "ballast_table_failures_total 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 1",
            "ballast_ready 1.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
