//! `cargo xtask fuzz`: libFuzzer on every target of `fuzz/`, for as long as is asked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::cmd;

use crate::process::{run_logged, say};
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

/// The fuzz targets; each has its corpus under `fuzz/corpus`.
const TARGETS: [&str; 2] = ["decide", "packet"];
/// Bytes of an input, at most.
const LONGEST: u32 = 4_096;
/// What libFuzzer needs of the code: counters of each edge, and what is compared with what. All of it stable.
const COVERAGE: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Clink-dead-code",
    "-Ccodegen-units=1",
    "-Cdebug-assertions=on",
];
/// Finds reads beyond the packet, which the parser makes by pointers. Only a nightly compiler has it.
const SANITIZER: &str = "-Zsanitizer=address";

/// `cargo xtask fuzz`
#[derive(Debug, Args)]
pub struct FuzzArgs {
    /// How long each target runs, in minutes
    #[arg(long, value_name = "N", default_value_t = 5)]
    minutes: u32,
    /// Only this target
    #[arg(long, value_parser = TARGETS)]
    target: Option<String>,
}

/// Runs the fuzzer on all targets.
pub fn run_all(workspace: &Workspace, minutes: u32) -> Result<()> {
    run(workspace, &FuzzArgs { minutes, target: None })
}

/// Runs the fuzzer. An input that breaks a rule is kept in the target's corpus, where the plain tests meet it, too.
pub fn run(workspace: &Workspace, args: &FuzzArgs) -> Result<()> {
    let has_nightly = cmd!("rustc", "+nightly", "--version").stdout_null().stderr_null().run().is_ok();
    say(if has_nightly {
        "fuzzing with the nightly compiler and its address sanitizer"
    } else {
        "there is no nightly compiler: fuzzing with the stable one, and no read beyond a packet is found \
         (remedy: `rustup toolchain install nightly`)"
    });
    let build = workspace.target().join("fuzz");
    let host = host()?;
    for target in TARGETS.into_iter().filter(|target| args.target.as_deref().is_none_or(|only| only == *target)) {
        compile(workspace, target, has_nightly, &build, &host)?;
        let binary = build.join(&host).join("release").join(target);
        fuzz(workspace, target, &binary, args.minutes)?;
    }
    Ok(())
}

/// The machine's own target triple: with it, cargo keeps the flags off build scripts.
fn host() -> Result<String> {
    let version = cmd!("rustc", "-vV").read().context("asking rustc for its host")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

fn compile(workspace: &Workspace, target: &str, has_nightly: bool, build: &Path, host: &str) -> Result<()> {
    let compiler = has_nightly.then_some("+nightly");
    let arguments = ["build", "--release", "--locked", "--target", host, "--bin", target];
    let flags = COVERAGE.into_iter().chain(has_nightly.then_some(SANITIZER)).collect::<Vec<_>>().join("\u{1f}");
    let command = clean_cargo_env(
        duct::cmd("cargo", compiler.into_iter().chain(arguments))
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", build)
            .dir(workspace.root.join("fuzz")),
    );
    run_logged(&format!("building {target}"), &workspace.logs()?.join(format!("fuzz-build-{target}.log")), &command)
}

fn fuzz(workspace: &Workspace, target: &str, binary: &Path, minutes: u32) -> Result<()> {
    let kept = workspace.root.join("fuzz/corpus").join(target);
    // What the fuzzer learns goes to a folder of its own.
    let learnt: PathBuf = workspace.target().join("fuzz/learnt").join(target);
    fs::create_dir_all(&learnt).with_context(|| format!("cannot make {}", learnt.display()))?;
    let log = workspace.logs()?.join(format!("fuzz-{target}.log"));
    let command = cmd!(
        binary,
        format!("-max_total_time={}", u64::from(minutes) * 60),
        format!("-max_len={LONGEST}"),
        format!("-artifact_prefix={}/", kept.display()),
        &learnt,
        &kept
    );
    if let Err(error) = run_logged(&format!("fuzzing {target} for {minutes} minutes"), &log, &command) {
        bail!("{error:#}\nthe input is kept in {}; commit it with what mends it", kept.display());
    }
    let text = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let inputs = inputs(&text).with_context(|| format!("{} names no number of inputs", log.display()))?;
    say(&format!("{target}: {inputs} inputs, no rule broken"));
    Ok(())
}

/// How many inputs a fuzzer that ended in peace has tried: `Done 4711 runs in 61 second(s)`.
fn inputs(log: &str) -> Option<u64> {
    log.lines().rev().find_map(|line| line.strip_prefix("Done ")?.split(' ').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_file_and_a_corpus() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let files = fs::read_dir(fuzz.join("fuzz_targets")).expect("a folder");
        let mut names: Vec<_> = files.map(|file| file.expect("a file").path().with_extension("")).collect();
        names.sort();
        assert_eq!(names, TARGETS.map(|target| fuzz.join("fuzz_targets").join(target)));
        assert!(TARGETS.iter().all(|target| fuzz.join("corpus").join(target).is_dir()));
    }

    #[test]
    fn the_number_of_inputs_is_read_from_the_log() {
        assert_eq!(inputs("#4096\tpulse\nDone 4711 runs in 61 second(s)\n"), Some(4711));
        assert_eq!(inputs("==1== ERROR: libFuzzer: deadly signal"), None);
    }
}
