//! The picture of a soak: memory and records in use over the changes. Plain SVG.

use std::fmt::Write as _;

use lb_tests::churn::Soaked;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const GAP: f64 = 60.0;

/// Draws it.
pub fn draw(soaked: &Soaked) -> String {
    let points = |of: &dyn Fn(&lb_tests::churn::Sample) -> u64| -> Vec<(f64, f64)> {
        soaked.samples.iter().map(|sample| (precise(sample.changes), precise(of(sample)))).collect()
    };
    let (width, height) = (LEFT + WIDTH + 30.0, TOP + 2.0 * (HEIGHT + GAP));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{} changes of endpoints in {:.0} s, the agent killed {} times</text>\n",
        soaked.changes,
        soaked.took.as_secs_f64(),
        soaked.churned.kills
    );
    let panels = [
        ("agent's resident memory, MiB", "#1f5fa8", points(&|sample| sample.rss_kib / 1024)),
        ("records of backends in use", "#a8501f", points(&|sample| sample.records as u64)),
    ];
    for (index, (title, colour, points)) in panels.into_iter().enumerate() {
        let top = TOP + precise(index as u64) * (HEIGHT + GAP);
        panel(&mut svg, top, title, colour, &points);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, title: &str, colour: &str, points: &[(f64, f64)]) {
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(1.0, f64::max);
    let (x_most, y_most) = (most(|point| point.0), most(|point| point.1) * 1.1);
    let bottom = top + HEIGHT;
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\">{title}</text>\n\
         <path d=\"M{LEFT} {:.0}V{bottom:.0}H{:.0}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.0}</text>\n\
         <text x=\"{:.0}\" y=\"{bottom:.0}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{x_most:.0} changes</text>",
        top + 10.0,
        top + 16.0,
        LEFT + WIDTH,
        LEFT - 6.0,
        top + 20.0,
        y_most,
        LEFT - 6.0,
        LEFT + WIDTH,
        bottom + 16.0,
    );
    let place =
        |(x, y): &(f64, f64)| format!("{:.1},{:.1}", LEFT + x / x_most * WIDTH, bottom - y / y_most * (HEIGHT - 16.0));
    let line: Vec<String> = points.iter().map(place).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        line.join(" ")
    );
}

fn precise(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}
