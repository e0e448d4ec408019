//! Runs other programs: says what, keeps the output, and shows its end when it fails.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use duct::Expression;

/// How many lines of a failed program's output are shown.
const TAIL_LINES: usize = 40;

/// Prints a line that says what xtask does now.
pub fn say(text: &str) {
    // Standard output belongs to what the commands produce (`run --json`).
    eprintln!("==> {text}");
}

/// Runs with the output in a log file; on failure its last lines and its path are the error.
pub fn run_logged(what: &str, log: &Path, command: &Expression) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let output = command
        .stdin_null()
        .stderr_to_stdout()
        .stdout_file(file)
        .unchecked()
        .run()
        .with_context(|| format!("{what}: cannot be started"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(log).unwrap_or_default();
    bail!("{what}: failed ({}); the end of {}:\n{}", output.status, log.display(), tail(&text));
}

/// Runs with the output on the terminal.
pub fn run_shown(what: &str, command: &Expression) -> Result<()> {
    let output = command.unchecked().run().with_context(|| format!("{what}: cannot be started"))?;
    if !output.status.success() {
        bail!("{what}: failed ({})", output.status);
    }
    Ok(())
}

/// Runs with the output on the terminal, and hands each line of it to `each`. Returns whether the program succeeded.
pub fn run_watched(what: &str, command: &Expression, each: impl FnMut(&str)) -> Result<bool> {
    // Locked for a line at a time: what runs beside it prints too.
    run_read(what, command, &mut std::io::stdout(), each)
}

/// Runs with nothing on the terminal, and hands each line to `each`: for programs that shall fail.
pub fn run_unseen(what: &str, command: &Expression, each: impl FnMut(&str)) -> Result<bool> {
    run_read(what, command, &mut std::io::sink(), each)
}

fn run_read(what: &str, command: &Expression, shown: &mut impl Write, mut each: impl FnMut(&str)) -> Result<bool> {
    let reader =
        command.stderr_to_stdout().unchecked().reader().with_context(|| format!("{what}: cannot be started"))?;
    let mut lines = BufReader::new(&reader);
    let mut bytes = Vec::new();
    while lines.read_until(b'\n', &mut bytes).with_context(|| format!("{what}: its output cannot be read"))? > 0 {
        shown.write_all(&bytes).context("cannot write to the terminal")?;
        each(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    let status = reader.try_wait().with_context(|| format!("{what}: no exit status"))?;
    Ok(status.is_some_and(|output| output.status.success()))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_end_of_the_output() {
        let log = std::env::temp_dir().join(format!("ballast-xtask-{}.log", std::process::id()));
        let command = duct::cmd!("sh", "-c", "seq 100; echo the reason >&2; exit 3");
        let error = run_logged("counting", &log, &command).expect_err("exit code 3").to_string();
        fs::remove_file(&log).expect("the log was written");
        assert!(error.contains("counting: failed") && error.ends_with("the reason"), "{error}");
        assert!(!error.contains("\n61\n"), "only the end is shown: {error}");
        assert!(error.contains("\n62\n"), "{error}");
    }

    #[test]
    fn watched_lines_arrive_in_order_with_the_exit_status() {
        let mut seen = Vec::new();
        let good = run_watched("two lines", &duct::cmd!("sh", "-c", "echo a; echo b >&2; exit 1"), |line| {
            seen.push(line.to_owned());
        });
        assert!(!good.expect("sh is there"));
        assert_eq!(seen, ["a", "b"]);
    }
}
