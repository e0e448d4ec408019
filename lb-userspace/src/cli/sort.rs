//! `--sort-by`: the order of a list, by the name of a column. Pure.

use std::cmp::{Ordering, Reverse};

use crate::observe::connect_time::ConnectTimeView;
use crate::observe::inventory::{BackendView, ConnectionView, ServiceView};
use crate::observe::rates::ServiceRates;

/// A column and the order that it gives. Counts and rates: the largest first. All else: ascending, a missing value last.
pub(super) struct Column<T> {
    name: &'static str,
    order: fn(&T, &T) -> Ordering,
}

/// There is no such column.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot sort by {column:?}: the columns are {known}")]
pub(super) struct UnknownColumn {
    column: String,
    known: String,
}

/// Sorts by a column; items that are equal in it stay in their order.
pub(super) fn sort<T>(items: &mut [T], columns: &[Column<T>], by: &str) -> Result<(), UnknownColumn> {
    let found = columns.iter().find(|column| column.name.eq_ignore_ascii_case(by));
    let column = found.ok_or_else(|| UnknownColumn {
        column: by.to_owned(),
        known: columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", "),
    })?;
    items.sort_by(column.order);
    Ok(())
}

/// Ascending, a missing value last.
fn missing_last<V: Ord>(a: Option<V>, b: Option<V>) -> Ordering {
    (a.is_none(), a).cmp(&(b.is_none(), b))
}

fn largest_first<V: Ord>(a: V, b: V) -> Ordering {
    Reverse(a).cmp(&Reverse(b))
}

const fn column<T>(name: &'static str, order: fn(&T, &T) -> Ordering) -> Column<T> {
    Column { name, order }
}

pub(super) const SERVICES: &[Column<ServiceView>] = &[
    column("NAMESPACE", |a, b| a.namespace.cmp(&b.namespace)),
    column("SERVICE", |a, b| a.name.cmp(&b.name)),
    column("PORT", |a, b| a.port.cmp(&b.port)),
    column("ADDRESS", |a, b| a.frontends.first().cmp(&b.frontends.first())),
    column("FLOWS", |a, b| largest_first(flows(a), flows(b))),
    column("DEADLINE", |a, b| missing_last(deadline(a), deadline(b))),
    column("SCHEDULER", |a, b| a.scheduler.cmp(b.scheduler)),
    column("AFFINITY", |a, b| largest_first(a.affinity_timeout_s, b.affinity_timeout_s)),
    column("SELECTED", |a, b| largest_first(a.selected, b.selected)),
    column("REFUSED", |a, b| largest_first(a.refused, b.refused)),
    column("P50", |a, b| largest_first(p50(a.connect_time), p50(b.connect_time))),
    column("P99", |a, b| largest_first(p99(a.connect_time), p99(b.connect_time))),
    column("ID", |a, b| a.id.cmp(&b.id)),
];

fn p50(times: Option<ConnectTimeView>) -> Option<u64> {
    times.map(|times| times.p50_microseconds)
}

fn p99(times: Option<ConnectTimeView>) -> Option<u64> {
    times.map(|times| times.p99_microseconds)
}

fn flows(service: &ServiceView) -> u64 {
    service.backends.iter().map(|backend| backend.flows).sum()
}

fn deadline(service: &ServiceView) -> Option<u64> {
    service.backends.iter().filter_map(|backend| backend.deadline_seconds).min()
}

pub(super) const BACKENDS: &[Column<BackendView>] = &[
    column("ADDRESS", |a, b| (a.address, a.port).cmp(&(b.address, b.port))),
    column("NAMESPACE", |a, b| a.namespace.cmp(&b.namespace)),
    column("SERVICE", |a, b| a.service.cmp(&b.service)),
    column("PORT", |a, b| a.service_port.cmp(&b.service_port)),
    column("STATE", |a, b| a.state.cmp(b.state)),
    column("FLOWS", |a, b| largest_first(a.flows, b.flows)),
    column("PERIOD", |a, b| missing_last(a.drain_seconds, b.drain_seconds)),
    column("DEADLINE", |a, b| missing_last(a.deadline_seconds, b.deadline_seconds)),
    column("ANSWERED", |a, b| missing_last(a.answered_seconds, b.answered_seconds)),
    column("HALF-OPEN", |a, b| largest_first(a.half_open_flows, b.half_open_flows)),
    column("WEIGHT", |a, b| largest_first(a.weight, b.weight)),
    column("SELECTED", |a, b| largest_first(a.selected, b.selected)),
    column("LEFT", |a, b| largest_first(a.left, b.left)),
    column("P50", |a, b| largest_first(p50(a.connect_time), p50(b.connect_time))),
    column("P99", |a, b| largest_first(p99(a.connect_time), p99(b.connect_time))),
    column("ID", |a, b| a.id.cmp(&b.id)),
];

pub(super) const CONNECTIONS: &[Column<ConnectionView>] = &[
    column("NAMESPACE", |a, b| a.namespace.cmp(&b.namespace)),
    column("SERVICE", |a, b| a.service.cmp(&b.service)),
    column("PORT", |a, b| a.service_port.cmp(&b.service_port)),
    column("CLIENT", |a, b| client(a).cmp(&client(b))),
    column("FRONTEND", |a, b| (a.frontend_address, a.frontend_port).cmp(&(b.frontend_address, b.frontend_port))),
    column("BACKEND", |a, b| (a.backend_address, a.backend_port).cmp(&(b.backend_address, b.backend_port))),
    column("STATE", |a, b| a.state.cmp(b.state)),
    column("IDLE", |a, b| missing_last(a.idle_seconds, b.idle_seconds)),
    column("AGE", |a, b| missing_last(a.age_seconds, b.age_seconds)),
    column("EXPIRES", |a, b| missing_last(a.expires_seconds, b.expires_seconds)),
    column("MOVES", |a, b| largest_first(a.moves, b.moves)),
    column("REQUESTS", |a, b| largest_first(a.request_packets, b.request_packets)),
    column("REPLIES", |a, b| largest_first(a.reply_packets, b.reply_packets)),
    column("VIA", |a, b| a.via.cmp(b.via)),
];

fn client(view: &ConnectionView) -> (Option<std::net::IpAddr>, Option<u16>, Option<u64>) {
    (view.client_address, view.client_port, view.socket_cookie)
}

pub(super) const RATES: &[Column<ServiceRates>] = &[
    column("NAMESPACE", |a, b| a.namespace.cmp(&b.namespace)),
    column("SERVICE", |a, b| a.name.cmp(&b.name)),
    column("PORT", |a, b| a.port.cmp(&b.port)),
    column("CPS", |a, b| b.rates.connections.total_cmp(&a.rates.connections)),
    column("InPPS", |a, b| by_rate(b.rates.in_packets, a.rates.in_packets)),
    column("OutPPS", |a, b| by_rate(b.rates.out_packets, a.rates.out_packets)),
    column("InBPS", |a, b| by_rate(b.rates.in_bytes, a.rates.in_bytes)),
    column("OutBPS", |a, b| by_rate(b.rates.out_bytes, a.rates.out_bytes)),
];

fn by_rate(a: Option<f64>, b: Option<f64>) -> Ordering {
    a.unwrap_or_default().total_cmp(&b.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::inventory::Inventory;
    use crate::observe::inventory::tests::{NOW, contents};

    fn sorted(by: &str) -> Vec<String> {
        let contents = contents();
        let mut backends = Inventory::new(&contents, NOW).backends();
        sort(&mut backends, BACKENDS, by).expect("a column");
        backends.iter().map(|view| view.address.to_string()).collect()
    }

    #[test]
    fn counts_come_largest_first_and_missing_values_last() {
        assert_eq!(sorted("address"), ["10.1.0.2", "10.1.0.3", "fd00::2"]);
        assert_eq!(sorted("flows")[0], "10.1.0.2");
        assert_eq!(sorted("DEADLINE")[0], "10.1.0.3");
        assert_eq!(sorted("state")[2], "10.1.0.3", "active before draining");
    }

    #[test]
    fn an_unknown_column_is_refused_with_those_that_there_are() {
        let error = sort(&mut [], SERVICES, "size").expect_err("no column").to_string();
        assert!(error.contains("\"size\"") && error.contains("NAMESPACE, SERVICE"), "{error}");
    }

    /// The tables have headers of their own: each column can be sorted by, but for texts of several values.
    #[test]
    fn columns_of_the_tables_can_be_sorted_by() {
        use crate::observe::{rates, text};

        fn missing<T>(table: &str, columns: &[Column<T>]) -> Vec<String> {
            let header = table.lines().next().expect("a header");
            let names = header.split("  ").map(str::trim).filter(|name| !name.is_empty());
            names.filter(|name| columns.iter().all(|column| column.name != *name)).map(str::to_owned).collect()
        }
        assert_eq!(missing(&text::services(&[], true), SERVICES), ["KIND/STATE", "RATE-LIMIT"]);
        assert_eq!(missing(&text::backends(&[], true), BACKENDS), ["LOCAL", "SERVING", "GENERATION"]);
        assert_eq!(missing(&text::drains(&[], true), BACKENDS), ["GENERATION"]);
        assert_eq!(missing(&text::connections(&[], true), CONNECTIONS), ["TRIED", "TRANSLATED PORT"]);
        assert_eq!(missing(&rates::table(&[], true), RATES), ["BACKEND"]);
    }
}
