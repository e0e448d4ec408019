//! The goals, and how far each is reached.

use std::fmt::Write as _;

use crate::figures::Figure;

/// Number of each goal, and what it is about. Two more are settled: tests hold them.
const TITLES: [(u8, &str); 11] = [
    (1, "connections / direct"),
    (2, "request/response on one connection / direct"),
    (3, "connections / kube-proxy"),
    (4, "program cost of a packet / the least"),
    (5, "100,000 services / 10"),
    (6, "change → first packet"),
    (7, "cold start"),
    (8, "resident memory of the agent"),
    (9, "kernel memory"),
    (10, "floods"),
    (13, "bulk stream / direct"),
];

/// A table of every figure that has a goal. With `is_all`, goals that nothing was measured for have a line, too.
pub fn table(figures: &[Figure], is_all: bool) -> String {
    let mut text = "| # | goal | figure | goal | reached | |\n|---:|---|---|---:|---:|---|\n".to_owned();
    for (target, title) in TITLES {
        let own = || figures.iter().filter(|figure| figure.goal.is_some_and(|goal| goal.target == target));
        if is_all && own().next().is_none() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {target} | {title} | | | | not measured |");
        }
        for figure in own() {
            let verdict = if figure.is_reached() == Some(true) { "reached" } else { "**missed**" };
            let (name, goal, value) = (&figure.name, figure.goal_text(), figure.text());
            let _ = writeln!(text, "| {target} | {title} | {name} | {goal} | {value} | {verdict} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Better;

    #[test]
    fn every_goal_has_a_line() {
        let figures = [
            Figure::single("start", 1.5, "s", Better::Less).aims(7, 1.0),
            Figure::single("stream", 1.5, "", Better::More).aims(13, 1.0),
            Figure::single("without a goal", 1.0, "", Better::More),
        ];
        let text = table(&figures, true);
        assert_eq!(text.lines().count(), 2 + TITLES.len());
        assert!(text.contains("| 7 | cold start | start | ≤ 1.000 s | 1.500 s | **missed** |"), "{text}");
        assert!(text.contains("| 13 | bulk stream / direct | stream | ≥ 1.000 | 1.500 | reached |"), "{text}");
        assert!(text.contains("| 1 | connections / direct | | | | not measured |"), "{text}");
        assert_eq!(table(&figures, false).lines().count(), 4);
    }
}
