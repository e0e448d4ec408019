//! The metrics registry: what the agent counts itself, and the series read at each scrape. Names of kube-proxy, and ours.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use lb_common::outcome::Outcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::{MetricType, TypedMetric as _};
use prometheus_client::registry::Registry;

use super::catalogue::{Catalogue, Description};
use super::fleet_metrics::FleetMetrics;
use super::health::Probe;
use super::report::PassReport;
use super::series::{Distribution, MetricKind, Series};
use lb_source::api_requests::ApiRequests;

type Label = [(&'static str, String); 1];

/// The agent's metrics. Clones share their counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    descriptions: Arc<[Description]>,
    sync_duration: Histogram,
    full_sync_duration: Histogram,
    partial_sync_duration: Histogram,
    network_programming: Histogram,
    last_sync: Gauge<f64, AtomicU64>,
    last_queued: Gauge<f64, AtomicU64>,
    service_changes: Counter,
    endpoint_changes: Counter,
    writes: Counter,
    failures: Counter,
    calls: Counter,
    healthz: Family<Label, Counter>,
    livez: Family<Label, Counter>,
    readyz: Family<Label, Counter>,
    events: Family<Label, Counter>,
    checks: Family<Label, Counter>,
    fleet: FleetMetrics,
}

impl Metrics {
    /// `requests` are those to the API; `read` gives the series to add at each scrape.
    pub fn new(requests: &ApiRequests, read: impl Fn() -> Vec<Series> + Send + Sync + 'static) -> Self {
        // 1 ms to 16 s, as kube-proxy.
        let sync = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        let mut metrics = Self {
            registry: Arc::default(),
            descriptions: Arc::default(),
            sync_duration: sync(),
            full_sync_duration: sync(),
            partial_sync_duration: sync(),
            network_programming: Histogram::new(programming_buckets()),
            last_sync: Gauge::default(),
            last_queued: Gauge::default(),
            service_changes: Counter::default(),
            endpoint_changes: Counter::default(),
            writes: Counter::default(),
            failures: Counter::default(),
            calls: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
            readyz: Family::default(),
            events: Family::default(),
            checks: Family::default(),
            fleet: FleetMetrics::default(),
        };
        let Catalogue { mut registry, descriptions } = metrics.register(requests);
        registry.register_collector(Box::new(Readings { read: Box::new(read) }));
        metrics.registry = Arc::new(registry);
        metrics.descriptions = descriptions.into();
        metrics
    }

    fn register(&self, requests: &ApiRequests) -> Catalogue {
        let mut all = Catalogue::default();
        self.register_kube_proxys(&mut all);
        let sent = "Requests to the Kubernetes API, by code, method and host";
        all.register("rest_client_requests", sent, requests.counters());
        let durations = "Seconds until the answer to a request to the Kubernetes API was read; watches are left out";
        all.register("rest_client_request_duration_seconds", durations, requests.durations());
        all.register("ballast_readyz", "Answers of /readyz by code", self.readyz.clone());
        all.register("ballast_table_writes", "Operations carried out on the tables", self.writes.clone());
        all.register("ballast_table_failures", "Operations on the tables that failed", self.failures.clone());
        all.register("ballast_table_calls", "System calls made for the tables", self.calls.clone());
        all.register("ballast_events", "Records read from the event ring by outcome", self.events.clone());
        all.register("ballast_checks", "Active checks that ended, by result", self.checks.clone());
        self.fleet.register(&mut all);
        all
    }

    /// Under kube-proxy's names, so that its dashboards and alerts go on working.
    fn register_kube_proxys(&self, all: &mut Catalogue) {
        let sync = "Seconds that one pass over the tables took";
        all.register("kubeproxy_sync_proxy_rules_duration_seconds", sync, self.sync_duration.clone());
        let full = "Seconds that the first pass over all services took";
        all.register("kubeproxy_sync_full_proxy_rules_duration_seconds", full, self.full_sync_duration.clone());
        let partial = "Seconds that a pass over what changed took";
        all.register(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            partial,
            self.partial_sync_duration.clone(),
        );
        let programming = "Seconds from the change that the endpoint controller saw to its being in the tables";
        all.register("kubeproxy_network_programming_duration_seconds", programming, self.network_programming.clone());
        let last = "When the tables were last in step with the source, in seconds since the epoch";
        all.register("kubeproxy_sync_proxy_rules_last_timestamp_seconds", last, self.last_sync.clone());
        let queued = "When the source last delivered a change, in seconds since the epoch";
        all.register("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", queued, self.last_queued.clone());
        let services = "Changes of services seen";
        all.register("kubeproxy_sync_proxy_rules_service_changes", services, self.service_changes.clone());
        let slices = "Changes of endpoint slices seen";
        all.register("kubeproxy_sync_proxy_rules_endpoint_changes", slices, self.endpoint_changes.clone());
        all.register("kubeproxy_proxy_healthz", "Answers of /healthz by code", self.healthz.clone());
        all.register("kubeproxy_proxy_livez", "Answers of /livez by code", self.livez.clone());
    }

    /// A snapshot came, at a moment of the wall clock.
    pub fn changed(&self, changes: PassReport, seconds_since_epoch: f64) {
        self.service_changes.inc_by(changes.services);
        self.endpoint_changes.inc_by(changes.slices);
        self.last_queued.set(seconds_since_epoch);
    }

    /// A pass over the tables is over. `whole`: over all services, not only over what changed.
    pub fn synced(&self, took: Duration, whole: bool, writes: usize, failures: usize) {
        let took = took.as_secs_f64();
        self.sync_duration.observe(took);
        if whole { &self.full_sync_duration } else { &self.partial_sync_duration }.observe(took);
        self.writes.inc_by(writes as u64);
        self.failures.inc_by(failures as u64);
    }

    /// So many system calls were made for the tables since the start.
    pub fn called(&self, total: u64) {
        self.calls.inner().store(total, Ordering::Relaxed);
    }

    /// A change of endpoints is in the tables, this long after it happened.
    pub fn programmed(&self, seconds: f64) {
        self.network_programming.observe(seconds);
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

    /// An active check ended.
    pub fn checked(&self, result: &str) {
        self.checks.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Those of the listener of the fleet.
    pub fn fleet(&self) -> &FleetMetrics {
        &self.fleet
    }

    /// The metrics that are counted here, also those without a series yet. Those that are read describe themselves ([`Series`]).
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Everything, as Prometheus reads it.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail; a collector's series are plain data.
        let _ = text::encode(&mut text, &self.registry);
        prometheus(&text)
    }
}

/// From OpenMetrics to Prometheus' own text format, as kube-proxy has it. There, the name of a counter ends in `_total` also in the lines of its help
/// and type, and nothing marks the end.
fn prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    // Writing to a string does not fail.
    let mut counter = "";
    // Help comes before the type, so the type is looked up in the next line.
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            break;
        }
        let described = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        if let Some((name, help)) = described {
            let is_counter =
                lines.peek().is_some_and(|next| next.strip_prefix("# TYPE ") == Some(&format!("{name} counter")));
            counter = if is_counter { "_total" } else { "" };
            let _ = writeln!(text, "# HELP {name}{counter} {help}");
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let _ = writeln!(text, "# TYPE {name}{counter} {kind}");
        } else {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// kube-proxy's: quarters of a second, then seconds to a minute, then five and thirty seconds.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let (seconds, fives, thirties) =
        ((1..60).map(f64::from), (12..24).map(|n| 5.0 * f64::from(n)), (4..11).map(|n| 30.0 * f64::from(n)));
    [0.25, 0.5].into_iter().chain(seconds).chain(fives).chain(thirties)
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
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => ConstGauge::<f64>::TYPE,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(series.name, series.help, None, kind)?;
            for (labels, value) in &series.points {
                match (series.kind, labels.is_empty()) {
                    (MetricKind::Counter, _) => ConstCounter::new(*value).encode(metric.encode_family(labels)?)?,
                    (MetricKind::Gauge, false) => ConstGauge::new(*value).encode(metric.encode_family(labels)?)?,
                    // A family without labels would be written with empty braces.
                    (MetricKind::Gauge, true) => metric.encode_gauge(value)?,
                    (MetricKind::Histogram, _) => {}
                }
            }
            for (labels, Distribution { sum, buckets }) in &series.histograms {
                let count = buckets.iter().map(|(_, count)| count).sum();
                metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
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
        let metrics = Metrics::new(&ApiRequests::default(), || {
            let labels = vec![("outcome", "selected".into())];
            vec![
                Series {
                    name: "ballast_outcomes",
                    help: "",
                    kind: MetricKind::Counter,
                    points: vec![(labels, 3.0)],
                    histograms: Vec::new(),
                },
                Series {
                    name: "ballast_seconds",
                    help: "",
                    kind: MetricKind::Histogram,
                    points: Vec::new(),
                    histograms: vec![(
                        vec![("service", "web".into())],
                        Distribution { sum: 2.5, buckets: vec![(0.5, 3), (f64::INFINITY, 1)] },
                    )],
                },
                Series {
                    name: "ballast_ready",
                    help: "",
                    kind: MetricKind::Gauge,
                    points: vec![(Vec::new(), 1.0)],
                    histograms: Vec::new(),
                },
            ]
        });
        metrics.probed(Probe::Healthz, StatusCode::SERVICE_UNAVAILABLE);
        metrics.event(Outcome::Evicted);
        metrics.synced(Duration::from_millis(3), false, 12, 1);
        metrics.changed(PassReport { services: 2, slices: 5 }, 1.0);
        metrics.programmed(0.3);
        let text = metrics.encode();
        for line in [
            "ballast_outcomes_total{outcome=\"selected\"} 3.0",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
            "ballast_events_total{outcome=\"evicted\"} 1",
            "ballast_table_writes_total 12",
            "ballast_table_failures_total 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 1",
            "ballast_ready 1.0",
            "# TYPE ballast_seconds histogram",
            "ballast_seconds_bucket{le=\"0.5\",service=\"web\"} 3",
            "ballast_seconds_bucket{le=\"+Inf\",service=\"web\"} 4",
            "ballast_seconds_sum{service=\"web\"} 2.5",
            "ballast_seconds_count{service=\"web\"} 4",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 5",
            "# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter",
            "# HELP kubeproxy_proxy_healthz_total Answers of /healthz by code.",
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count 1",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.5\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("EOF"));
    }

    #[test]
    fn buckets_are_kube_proxys() {
        let buckets: Vec<_> = programming_buckets().collect();
        assert_eq!(
            (buckets.len(), buckets[2], buckets[60], buckets[61], buckets[72], buckets[73], buckets[79]),
            (80, 1.0, 59.0, 60.0, 115.0, 120.0, 300.0)
        );
    }
}
