//! What the times come to: ratios of arms, with the goals that they have.

use super::measure::{Row, Workload};
use crate::figures::{Better, Figure};
use crate::fixture::{FAMILIES, Mode, Position, Route, Size};

/// All ratios of one kind of traffic.
pub fn figures(kind: Workload, rows: &[Row], many: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let (route, family) = (row.arm.route, row.arm.family);
        if route != route.reference()
            && let Some(reference) = find(rows, route.reference(), family)
        {
            figures.extend(pair(kind, row, reference, many));
        }
        if let Route::KubeProxy(_, size, _) = route
            && let Some(ours) = [Route::Fast(size), Route::Tc(size)].iter().find_map(|route| find(rows, *route, family))
        {
            figures.extend(pair(kind, ours, row, many));
        }
    }
    figures
}

fn find(rows: &[Row], route: Route, family: usize) -> Option<&Row> {
    rows.iter().find(|row| row.arm.route == route && row.arm.family == family)
}

/// The rate of one by that of the other; by the clock, the 99th percentiles.
fn pair(kind: Workload, tested: &Row, reference: &Row, many: usize) -> Vec<Figure> {
    let what = match kind {
        Workload::Connect => "connect",
        Workload::Exchange => "request/response",
        Workload::Rate { .. } => "connect by the clock",
        Workload::Stream { .. } => "stream",
    };
    let family = FAMILIES[tested.arm.family];
    let name = format!("{what}, {family}: {} / {}", tested.arm.name(many), reference.arm.name(many));
    let rate = Figure::ratio(name.clone(), &tested.rate_to(reference), Better::More);
    let rate = match goal(kind, tested.arm.route, reference.arm.route) {
        Some((target, value)) => rate.aims(target, value),
        None => rate,
    };
    let p99 = || Figure::ratio(format!("{name}, p99"), &tested.p99_to(reference), Better::Less);
    let is_ours = matches!(tested.arm.route, Route::Tc(_) | Route::Fast(_)) && reference.arm.route == Route::Direct;
    match kind {
        Workload::Connect | Workload::Exchange | Workload::Stream { .. } => vec![rate],
        // Its rate is given; its times are what it is for.
        Workload::Rate { .. } => vec![if is_ours { p99().aims(1, 1.1) } else { p99() }],
    }
}

/// The goal of a rate.
fn goal(kind: Workload, tested: Route, reference: Route) -> Option<(u8, f64)> {
    match (kind, tested, reference) {
        (Workload::Connect, Route::Fast(_), Route::Direct) => Some((1, 1.0)),
        (Workload::Connect, Route::Tc(_), Route::Direct) => Some((1, 0.96)),
        (Workload::Exchange, Route::Fast(_), Route::Direct) => Some((2, 1.1)),
        (Workload::Exchange, Route::Socket, Route::FromHost) => Some((2, 0.99)),
        (Workload::Connect, Route::Fast(_) | Route::Tc(_), Route::KubeProxy(Mode::Nftables, ..)) => Some((3, 1.2)),
        (Workload::Connect, Route::Fast(_) | Route::Tc(_), Route::KubeProxy(Mode::Iptables, Size::Many, position)) => {
            match position {
                Position::First => Some((3, 1.5)),
                Position::Middle => Some((3, 5.0)),
                Position::Any | Position::Last => None,
            }
        }
        (Workload::Stream { .. }, Route::Fast(_), Route::Direct) => Some((13, 1.0)),
        _ => None,
    }
}
