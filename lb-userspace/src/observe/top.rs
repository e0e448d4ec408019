//! What `ballast top` shows: each service port with its rates, connections and drains. Pure.

use lb_common::abi::ConnectTimes;

use super::connect_time::{between, percentile_text};
use super::inventory::{BackendOfService, ServiceView};
use super::rates::{self, Reading};
use super::report::SourceReport;
use super::table::{aligned, or_dash, place};

/// Columns of the services. The first three are names.
pub const SERVICE_COLUMNS: [&str; 12] = [
    "NAMESPACE",
    "SERVICE",
    "PORT",
    "NEW/S",
    "OPEN",
    "HALF-OPEN",
    "RETRIES/S",
    "REFUSED/S",
    "P99",
    "BACKENDS",
    "DRAINS",
    "DEADLINE",
];
/// Columns of the backends of a service. The first two are names.
pub const BACKEND_COLUMNS: [&str; 9] =
    ["ADDRESS", "STATE", "NEW/S", "OPEN", "HALF-OPEN", "RETRIES/S", "P99", "PERIOD", "DEADLINE"];

/// A service port at the time of a reading.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRow {
    pub id: u32,
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub protocol: &'static str,
    /// `None`: there is no earlier reading to compare with.
    pub rates: Option<ServiceRate>,
    /// Connections that have not expired, without those that nobody has answered.
    pub open: u64,
    /// Connections that nobody has answered.
    pub half_open: u64,
    pub backends: Vec<BackendRow>,
}

/// What a service port meets in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceRate {
    /// New connections.
    pub connections: f64,
    /// SYNs that were sent again and moved to another backend.
    pub retries: f64,
    /// New connections that were refused or dropped.
    pub refusals: f64,
    /// Connect times since the reading before.
    pub connect_times: ConnectTimes,
}

/// A backend of a service port.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendRow {
    pub address: String,
    /// With the marks `ejected` and `unhealthy`.
    pub state: String,
    /// It takes new connections.
    pub takes: bool,
    /// `None`: there is no earlier reading to compare with.
    pub rates: Option<BackendRate>,
    pub open: u64,
    pub half_open: u64,
    /// Seconds until its drain period ends; `None`: it does not drain.
    pub drain_seconds: Option<u64>,
    /// Seconds until its last connections are evicted; `None`: no deadline.
    pub deadline_seconds: Option<u64>,
}

/// What a backend meets in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackendRate {
    /// New connections.
    pub connections: f64,
    /// SYNs that were sent again and left this backend.
    pub retries: f64,
    /// Connect times since the reading before.
    pub connect_times: ConnectTimes,
}

/// The services of `after`, in their order; with rates if there is an earlier reading.
pub fn rows(before: Option<&Reading>, after: &Reading) -> Vec<ServiceRow> {
    let Some(before) = before else {
        return after.services.iter().map(|service| row(service, None, Vec::new())).collect();
    };
    let (known, seconds) = (before.by_id(), after.seconds_since(before));
    #[expect(clippy::cast_precision_loss, reason = "no rate has 53 bits")]
    let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let with_rates = |(service, rates): (&ServiceView, rates::ServiceRates)| {
        let earlier = known.get(&service.id).copied();
        let rate = ServiceRate {
            connections: rates.rates.connections,
            retries: per_second(service.retries, earlier.map_or(0, |known| known.retries)),
            refusals: per_second(service.refusals, earlier.map_or(0, |known| known.refusals)),
            connect_times: between(earlier.map(|known| &*known.connect_times), &service.connect_times),
        };
        let of_backend = |(backend, rates): (&BackendOfService, &rates::BackendRates)| {
            let is_same = |known: &&BackendOfService| (known.address, known.port) == (backend.address, backend.port);
            let known = earlier.and_then(|service| service.backends.iter().find(is_same));
            let retries = per_second(backend.retries(), known.map_or(0, BackendOfService::retries));
            let before = known.and_then(|known| known.connect_times.as_deref());
            let connect_times = backend.connect_times.as_deref().map(|after| between(before, after));
            BackendRate {
                connections: rates.rates.connections,
                retries,
                connect_times: connect_times.unwrap_or_default(),
            }
        };
        let of_backends = service.backends.iter().zip(&rates.backends).map(of_backend).collect();
        row(service, Some(rate), of_backends)
    };
    after.services.iter().zip(rates::rates(before, after)).map(with_rates).collect()
}

fn row(service: &ServiceView, rates: Option<ServiceRate>, of_backends: Vec<BackendRate>) -> ServiceRow {
    let mut of_backends = of_backends.into_iter();
    let backends: Vec<_> = service.backends.iter().map(|backend| backend_row(backend, of_backends.next())).collect();
    ServiceRow {
        id: service.id,
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        port: service.port,
        protocol: service.protocol,
        rates,
        open: backends.iter().map(|backend| backend.open).sum(),
        half_open: backends.iter().map(|backend| backend.half_open).sum(),
        backends,
    }
}

fn backend_row(backend: &BackendOfService, rates: Option<BackendRate>) -> BackendRow {
    let marks = [(backend.ejected, "ejected"), (backend.unhealthy, "unhealthy")];
    let marks = marks.into_iter().filter(|(is_set, _)| *is_set).map(|(_, mark)| mark);
    BackendRow {
        address: place(backend.address, backend.port),
        state: std::iter::once(backend.state).chain(marks).collect::<Vec<_>>().join(", "),
        takes: backend.state == "active" && !backend.ejected && !backend.unhealthy,
        rates,
        open: backend.flows.saturating_sub(backend.half_open),
        half_open: backend.half_open,
        drain_seconds: backend.drain_seconds,
        deadline_seconds: backend.deadline_seconds,
    }
}

impl ServiceRow {
    /// `NAMESPACE/NAME:PORT`, as `--service` takes it.
    pub fn full_name(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, self.port)
    }

    fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.backends.iter().filter_map(|backend| backend.deadline_seconds)
    }

    /// The texts of [`SERVICE_COLUMNS`], `elapsed` seconds after the reading.
    pub fn cells(&self, elapsed: u64) -> Vec<String> {
        let rate = |of: fn(&ServiceRate) -> f64| or_dash(self.rates.as_ref().map(|rates| rate_text(of(rates))));
        let takes = self.backends.iter().filter(|backend| backend.takes).count();
        let (drains, next) = (self.deadlines().count(), self.deadlines().min());
        vec![
            self.namespace.clone(),
            self.name.clone(),
            format!("{}/{}", self.port, self.protocol),
            rate(|rates| rates.connections),
            self.open.to_string(),
            self.half_open.to_string(),
            rate(|rates| rates.retries),
            rate(|rates| rates.refusals),
            percentile_text(self.rates.as_ref().map(|rates| &rates.connect_times), 99),
            format!("{takes}/{}", self.backends.len()),
            drains.to_string(),
            left(next, elapsed),
        ]
    }
}

impl BackendRow {
    /// The texts of [`BACKEND_COLUMNS`], `elapsed` seconds after the reading.
    pub fn cells(&self, elapsed: u64) -> Vec<String> {
        let rate = |of: fn(&BackendRate) -> f64| or_dash(self.rates.as_ref().map(|rates| rate_text(of(rates))));
        vec![
            self.address.clone(),
            self.state.clone(),
            rate(|rates| rates.connections),
            self.open.to_string(),
            self.half_open.to_string(),
            rate(|rates| rates.retries),
            percentile_text(self.rates.as_ref().map(|rates| &rates.connect_times), 99),
            left(self.drain_seconds, elapsed),
            left(self.deadline_seconds, elapsed),
        ]
    }
}

/// What is left of a period.
fn left(seconds: Option<u64>, elapsed: u64) -> String {
    or_dash(seconds.map(|seconds| format!("{}s", seconds.saturating_sub(elapsed))))
}

/// Small rates with a decimal: one connection in four seconds is not none.
fn rate_text(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// The services as plain text. All of each name is shown.
pub fn table(rows: &[ServiceRow]) -> String {
    aligned(&SERVICE_COLUMNS, rows.iter().map(|row| row.cells(0)))
}

/// How fresh the agent's source is, in one line, and whether it is stale.
pub fn freshness(source: &SourceReport) -> (String, bool) {
    let state = match (&source.stale, source.synced) {
        (Some(reason), _) => format!("stale: {reason}"),
        (None, false) => "not listed yet".to_owned(),
        (None, true) => "fresh".to_owned(),
    };
    let ages = source.age_seconds.iter().map(|(resource, age)| format!("{resource} proven {age:.1}s ago"));
    let parts = std::iter::once(format!("{} {}", source.kind, state)).chain(ages);
    (parts.collect::<Vec<_>>().join(", "), source.stale.is_some() || !source.synced)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_common::abi::{ConnectKey, StatKey, stat_kind};
    use lb_common::outcome::Outcome;

    use super::*;
    use crate::observe::connect_time::times;
    use crate::observe::inventory::tests::{NOW, contents};

    fn two_readings() -> (Reading, Reading) {
        let (mut before, mut after) = (contents(), contents());
        let stat = |kind, outcome, count| (StatKey { id: 1, kind, outcome: outcome as u8, pad: 0 }, count);
        before.stats = vec![stat(stat_kind::SERVICE, Outcome::Retried, 7)];
        after.stats = vec![
            stat(stat_kind::SERVICE, Outcome::Selected, 30),
            stat(stat_kind::SERVICE, Outcome::Retried, 9),
            stat(stat_kind::SERVICE, Outcome::DroppedRateLimit, 3),
            stat(stat_kind::SERVICE, Outcome::RefusedNoEndpoint, 1),
            stat(stat_kind::BACKEND4, Outcome::Retried, 2),
        ];
        (Reading::new(&before, NOW, false), Reading::new(&after, NOW + Duration::from_secs(2), false))
    }

    #[test]
    fn rates_are_those_between_the_readings() {
        let (before, after) = two_readings();
        let rows = rows(Some(&before), &after);
        let web = rows[0].cells(0);
        assert_eq!(web[..3], ["demo", "web", "80/TCP"]);
        assert_eq!([&web[3], &web[6], &web[7]], ["15", "1.0", "2.0"], "new, retries, refused: {web:?}");
        assert_eq!(rows[0].backends[0].cells(0)[5], "1.0", "retries of the first backend");
        assert_eq!(rows[1].cells(0)[3], "0");
    }

    #[test]
    fn connect_times_are_those_between_the_readings() {
        let (mut before, mut after) = (contents(), contents());
        let key = ConnectKey { id: 1, kind: stat_kind::BACKEND4.into() };
        before.connect_times = vec![(key, times(&[(500, 300_000)]))];
        after.connect_times = vec![(key, times(&[(500, 300_000), (3, 100)]))];
        let (before, after) = (Reading::new(&before, NOW, false), Reading::new(&after, NOW, false));
        let shown = rows(Some(&before), &after);
        assert_eq!((shown[0].cells(0)[8].as_str(), shown[0].backends[0].cells(0)[6].as_str()), ("<132us", "<132us"));
        assert_eq!(shown[0].backends[1].cells(0)[6], "-");
        assert_eq!(rows(None, &after)[0].cells(0)[8], "-");
    }

    #[test]
    fn without_an_earlier_reading_there_are_no_rates() {
        let (first, _) = two_readings();
        let cells = rows(None, &first)[0].cells(0);
        assert_eq!([&cells[3], &cells[6], &cells[7]], ["-", "-", "-"]);
    }

    #[test]
    fn drains_count_down() {
        let (first, _) = two_readings();
        let rows = rows(None, &first);
        let shown = |elapsed| rows[0].cells(elapsed)[10..].to_vec();
        assert_eq!(shown(0), ["1", "30s"]);
        assert_eq!(shown(10), ["1", "20s"]);
        assert_eq!(shown(40), ["1", "0s"]);
        let draining = rows[0].backends.iter().find(|backend| backend.state == "draining").expect("one drains");
        assert_eq!(draining.cells(3)[7..], ["7s", "27s"]);
    }

    #[test]
    fn plain_text_has_all_of_a_long_name() {
        let (first, _) = two_readings();
        let mut rows = rows(None, &first);
        rows[0].name = "n".repeat(300);
        assert!(table(&rows).contains(&"n".repeat(300)));
    }

    #[test]
    fn a_stale_source_is_named_with_its_reason() {
        let mut source = SourceReport { kind: "kube".into(), synced: true, ..SourceReport::default() };
        source.age_seconds.insert("services".into(), 0.42);
        assert_eq!(freshness(&source), ("kube fresh, services proven 0.4s ago".into(), false));
        source.stale = Some("the API does not answer".into());
        assert_eq!(freshness(&source), ("kube stale: the API does not answer, services proven 0.4s ago".into(), true));
    }
}
