//! The picture of a stampede that does not happen: plain SVG.

use std::{fmt::Write as _, path::PathBuf};

use super::{AGENTS, END, FAULT, RETURN, Run};

const WIDTH: u64 = 720;
const LEFT: u64 = 60;
const PANEL: u64 = 170;
const HEIGHT: u64 = 120;
/// Requests per second at the upper edge.
const MOST: u64 = 2_500;

fn x(second: u64) -> u64 {
    LEFT + second * (WIDTH - LEFT - 10) / END
}

/// One panel for each fault.
pub fn draw(runs: &[Run]) -> String {
    let height = PANEL * runs.len() as u64 + 30;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (place, run) in (0..).zip(runs) {
        panel(&mut svg, run, place * PANEL + 30);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" fill=\"#555555\">requests per second of {AGENTS} agents in a quiet cluster, over seconds</text>\n</svg>",
        height - 8
    );
    svg
}

fn panel(svg: &mut String, run: &Run, top: u64) {
    let bottom = top + HEIGHT;
    let y = |requests: u64| bottom - requests.min(MOST) * HEIGHT / MOST;
    let (quiet, peak) = (run.mean(0, FAULT), run.peak(FAULT, END));
    let _ =
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{}: {quiet}/s before, at most {peak}/s</text>", top - 8, run.title);
    let _ = writeln!(
        svg,
        "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{HEIGHT}\" fill=\"#f2f2f2\"/>",
        x(FAULT),
        if run.title.starts_with("All") { 1 } else { x(RETURN) - x(FAULT) }
    );
    for requests in [0, MOST / 2, MOST] {
        let (at, text) = (y(requests), requests);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at}H{}\" stroke=\"#cccccc\"/>", x(END));
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#555555\">{text}</text>",
            LEFT - 6,
            at + 4
        );
    }
    for second in (0..=END).step_by(120) {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{second}</text>",
            x(second),
            bottom + 14
        );
    }
    let points: Vec<String> =
        (0..).zip(&run.per_second).map(|(second, requests)| format!("{},{}", x(second), y(*requests))).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\"/>", points.join(" "));
}

/// Draws the picture into the manual if asked to, else asserts that it is there as it is.
pub fn assert_or_draw(svg: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/pictures/stampede.svg");
    if std::env::var_os("BALLAST_DRAW").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).unwrap();
        std::fs::write(&path, svg).unwrap();
        return;
    }
    let drawn = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawn == svg, "{} is not what comes out: run this test with BALLAST_DRAW=1", path.display());
}
