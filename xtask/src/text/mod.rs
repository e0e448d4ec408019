//! Lints of the text: source files that are too long, retired words, links that lead nowhere. `cargo xtask lint` runs them.

mod files;
mod lengths;
mod links;
mod words;

use std::path::Path;

/// Where a text breaks a rule: file, line and what is wrong.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    line: usize,
    problem: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

/// Fails with one line for each finding.
fn assert_none(rule: &str, findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{rule}: {} findings\n{}\n", lines.len(), lines.join("\n"));
}

/// The root of the checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout")
}
