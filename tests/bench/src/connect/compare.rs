//! What the times come to: ratios of arms, with the goals that they have.

use super::measure::{Kind, Row};
use crate::figures::{Better, Figure};
use crate::fixture::{FAMILIES, Mode, Position, Size, Way};

/// All ratios of one kind of traffic.
pub fn figures(kind: Kind, rows: &[Row], many: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let (way, family) = (row.arm.way, row.arm.family);
        if way != way.reference()
            && let Some(reference) = find(rows, way.reference(), family)
        {
            figures.extend(pair(kind, row, reference, many));
        }
        if let Way::KubeProxy(_, size, _) = way
            && let Some(ours) = [Way::Fast(size), Way::Tc(size)].iter().find_map(|way| find(rows, *way, family))
        {
            figures.extend(pair(kind, ours, row, many));
        }
    }
    figures
}

fn find(rows: &[Row], way: Way, family: usize) -> Option<&Row> {
    rows.iter().find(|row| row.arm.way == way && row.arm.family == family)
}

/// The rate of one by that of the other; by the clock, the 99th percentiles.
fn pair(kind: Kind, tested: &Row, reference: &Row, many: usize) -> Vec<Figure> {
    let what = match kind {
        Kind::Connect => "connect",
        Kind::Exchange => "request/response",
        Kind::Rate { .. } => "connect by the clock",
        Kind::Stream { .. } => "stream",
    };
    let family = FAMILIES[tested.arm.family];
    let name = format!("{what}, {family}: {} / {}", tested.arm.name(many), reference.arm.name(many));
    let rate = Figure::ratio(name.clone(), &tested.rate_to(reference), Better::More);
    let rate = match goal(kind, tested.arm.way, reference.arm.way) {
        Some((target, value)) => rate.aims(target, value),
        None => rate,
    };
    let p99 = || Figure::ratio(format!("{name}, p99"), &tested.p99_to(reference), Better::Less);
    let is_ours = matches!(tested.arm.way, Way::Tc(_) | Way::Fast(_)) && reference.arm.way == Way::Direct;
    match kind {
        Kind::Connect | Kind::Exchange | Kind::Stream { .. } => vec![rate],
        // Its rate is given; its times are what it is for.
        Kind::Rate { .. } => vec![if is_ours { p99().aims(1, 1.1) } else { p99() }],
    }
}

/// The goal of a rate.
fn goal(kind: Kind, tested: Way, reference: Way) -> Option<(u8, f64)> {
    match (kind, tested, reference) {
        (Kind::Connect, Way::Fast(_), Way::Direct) => Some((1, 1.0)),
        (Kind::Connect, Way::Tc(_), Way::Direct) => Some((1, 0.96)),
        (Kind::Exchange, Way::Fast(_), Way::Direct) => Some((2, 1.1)),
        (Kind::Exchange, Way::Socket, Way::FromHost) => Some((2, 0.99)),
        (Kind::Connect, Way::Fast(_) | Way::Tc(_), Way::KubeProxy(Mode::Nftables, ..)) => Some((3, 1.2)),
        (Kind::Connect, Way::Fast(_) | Way::Tc(_), Way::KubeProxy(Mode::Iptables, Size::Many, position)) => {
            match position {
                Position::First => Some((3, 1.5)),
                Position::Middle => Some((3, 5.0)),
                Position::Any | Position::Last => None,
            }
        }
        (Kind::Stream { .. }, Way::Fast(_), Way::Direct) => Some((13, 1.0)),
        _ => None,
    }
}
