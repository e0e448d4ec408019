//! Pictures: ratios as points with their intervals, one line each, and a mark where the goal is. Plain SVG.

use std::fmt::Write as _;

use crate::figures::{Better, Figure, short};

const ROW: f64 = 18.0;
const LABELS: f64 = 560.0;
const CHART: f64 = 380.0;
const VALUES: f64 = 70.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 28.0;
const GOOD: &str = "#1f7a3f";
const BAD: &str = "#b3261e";
const PLAIN: &str = "#1f5fa8";

/// Draws those of the figures that are ratios with an interval; `None` if there are none. The scale is logarithmic: twice as fast lies
/// as far from one as half as fast.
pub fn draw(title: &str, figures: &[&Figure]) -> Option<String> {
    let drawn: Vec<(&Figure, [f64; 2])> =
        figures.iter().filter_map(|figure| Some((*figure, figure.interval.filter(|_| figure.value > 0.0)?))).collect();
    if drawn.is_empty() {
        return None;
    }
    let goals = drawn.iter().filter_map(|(figure, _)| Some(figure.goal?.value));
    let values = drawn.iter().flat_map(|(figure, [low, high])| [figure.value, *low, *high]).chain(goals).chain([1.0]);
    let (least, most) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((1.0_f64, 1.0_f64), |(a, b), value| (a.min(value), b.max(value)));
    let scale = Scale { low: (least * 0.95).ln(), high: (most * 1.05).ln() };
    let rows = f64::from(u32::try_from(drawn.len()).unwrap_or(u32::MAX));
    let (width, height) = (LABELS + CHART + VALUES, TOP + rows * ROW + BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
    let bottom = TOP + rows * ROW;
    for tick in ticks(least, most) {
        let x = scale.x(tick);
        let (colour, line) = if (tick - 1.0).abs() < 1e-9 { ("#555", 1.2) } else { ("#ddd", 1.0) };
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"{colour}\" stroke-width=\"{line}\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 16.0
        );
    }
    let mut y = TOP + ROW / 2.0;
    for (figure, interval) in drawn {
        row(&mut svg, &scale, y, figure, interval);
        y += ROW;
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Natural logarithms of the ends.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        LABELS + (value.max(f64::MIN_POSITIVE).ln() - self.low) / (self.high - self.low) * CHART
    }
}

fn row(svg: &mut String, scale: &Scale, y: f64, figure: &Figure, [low, high]: [f64; 2]) {
    let colour = match figure.is_reached() {
        None => PLAIN,
        Some(true) => GOOD,
        Some(false) => BAD,
    };
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <path d=\"M{:.1} {y}H{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
         <circle cx=\"{:.1}\" cy=\"{y}\" r=\"3.5\" fill=\"{colour}\"/>\n\
         <text x=\"{:.0}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
        LABELS - 8.0,
        y + 4.0,
        escape(&figure.name),
        scale.x(low),
        scale.x(high),
        scale.x(figure.value),
        LABELS + CHART + 8.0,
        y + 4.0,
        short(figure.value),
    );
    if let Some(goal) = figure.goal {
        let (x, sign) = (scale.x(goal.value), if figure.better == Better::More { 4.0 } else { -4.0 });
        // It points to where it is good.
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}l{sign} 5l{:.1} 5z\" fill=\"none\" stroke=\"#333\"/>",
            y - 5.0,
            -sign
        );
    }
}

/// Round numbers within the range, one always among them.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    const ALL: [f64; 16] =
        [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];
    const CLOSE: [f64; 9] = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5];
    let near = least > 0.6 && most < 1.7;
    let candidates: &[f64] = if near { &CLOSE } else { &ALL };
    candidates.iter().copied().filter(|tick| (least..=most).contains(tick)).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(name: &str, value: f64) -> Figure {
        let interval = Some([value * 0.9, value * 1.1]);
        Figure { interval, ..Figure::single(name, value, "", Better::More) }
    }

    /// Each ratio is a point within the chart; what was measured once is not drawn.
    #[test]
    fn every_ratio_is_a_point() {
        let figures = [ratio("a < b", 0.5).aims(1, 1.0), ratio("c", 8.0).aims(3, 5.0), ratio("d", 1.0)];
        let once = Figure::single("seconds", 3.0, "s", Better::Less);
        let all: Vec<&Figure> = figures.iter().chain([&once]).collect();
        let svg = draw("A & B", &all).expect("three ratios");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &lt; b") && svg.contains("A &amp; B") && !svg.contains("seconds"));
        assert_eq!(svg.matches(&format!("<circle cx=\"{LABELS}")).count(), 0, "room on the left");
        for part in svg.split("<circle cx=\"").skip(1) {
            let x: f64 = part.split('"').next().expect("a number").parse().expect("a number");
            assert!((LABELS..LABELS + CHART).contains(&x), "{x}");
        }
        assert!(svg.contains(GOOD) && svg.contains(BAD) && svg.contains(PLAIN));
        assert_eq!(draw("nothing", &[&once]), None);
    }

    #[test]
    fn one_is_always_marked() {
        for (least, most) in [(0.9, 1.1), (0.01, 40.0), (1.0, 1.0)] {
            assert!(ticks(least, most).iter().any(|tick| (tick - 1.0).abs() < 1e-9), "{least} {most}");
        }
    }
}
