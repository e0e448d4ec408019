//! Mutants that cargo-mutants makes of lb-common, the agent and the crates below it, judged by the tests that need no kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use duct::{Expression, cmd};

use super::SEED;
use crate::process::say;
use crate::setup;
use crate::test::Tally;
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

/// The packages that are mutated together, and the tests of all of them that judge each mutant.
const PACKAGES: [(&[&str], &str); 2] = [(&["lb-common"], "--tests"), (&USERSPACE, "--lib")];

/// The agent, and the crates below it.
pub const USERSPACE: [&str; 9] = [
    "lb-userspace",
    "lb-datapath",
    "lb-model",
    "lb-netlink",
    "lb-objects",
    "lb-plan",
    "lb-source",
    "lb-tables",
    "lb-takeover",
];

/// Parts of all mutations in the long form of the ladder: each takes about an hour.
const PARTS: usize = 56;

/// What became of the mutants of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcomes {
    caught: usize,
    /// The tests did not end.
    timed_out: usize,
    /// It does not build.
    unviable: usize,
    missed: Vec<String>,
}

impl Outcomes {
    fn tried(&self) -> usize {
        self.caught + self.timed_out + self.unviable + self.missed.len()
    }

    fn line(&self, what: &str, all: usize, took: Duration) -> String {
        format!(
            "{what}: {} of {all} mutants tried in {:.0} s, {} not: {} caught, {} missed, {} ran into the time limit, {} do not build",
            self.tried(),
            took.as_secs_f64(),
            all.saturating_sub(self.tried()),
            self.caught,
            self.missed.len(),
            self.timed_out,
            self.unviable
        )
    }

    /// A mutant that is missed fails.
    fn tally(&self) -> Tally {
        let passed = u64::try_from(self.caught + self.timed_out).unwrap_or(u64::MAX);
        let mut tally = Tally { passed, ..Tally::default() };
        for mutant in &self.missed {
            tally += Tally::one(&format!("no test notices the mutant {mutant}"), false);
        }
        tally
    }
}

/// One of so many parts of the mutants, which together are all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    index: usize,
    of: usize,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-of-{}", self.index + 1, self.of)
    }
}

impl Part {
    /// The parts of the long form of the ladder.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..PARTS).map(|index| Self { index, of: PARTS })
    }

    /// What is in it of these.
    pub fn of<T>(self, all: impl Iterator<Item = T>) -> Vec<T> {
        all.skip(self.index).step_by(self.of).collect()
    }

    /// Reads `K/N`, where K is at least 1 and at most N.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { index: number - 1, of }),
            _ => bail!("{text:?} is no part: expected K/N with K from 1 to N, as 3/14"),
        }
    }

    /// Neighbours in a file, which change like things, are spread over the parts.
    fn arguments(self) -> [String; 2] {
        ["--sharding=round-robin".to_owned(), format!("--shard={}/{}", self.index, self.of)]
    }
}

/// Tries all mutants that `filter`, a regular expression, fits, or a part of them, or as many as can be tried in this time; in random
/// order, so that runs that do not end try different ones.
pub fn run_all(
    workspace: &Workspace,
    filter: Option<&str>,
    part: Option<Part>,
    time: Option<Duration>,
) -> Result<Tally> {
    setup::mutants(workspace)?;
    let started = Instant::now();
    let mut runs = Vec::new();
    for (packages, tests) in PACKAGES {
        let mut which: Vec<String> = packages.iter().map(|package| format!("--package={package}")).collect();
        which.extend(filter.map(|filter| format!("--re={filter}")));
        which.extend(part.into_iter().flat_map(Part::arguments));
        let target = workspace.target().join("mutations/generated");
        let run = Run { workspace, root: workspace.root.clone(), target, which };
        if run.count()? > 0 {
            runs.push((packages, tests, run));
        }
    }
    if runs.is_empty() {
        bail!("cargo-mutants makes no mutant that fits {filter:?} in this part");
    }
    let mut tally = Tally::default();
    let mut left = u32::try_from(runs.len()).unwrap_or(u32::MAX);
    for (packages, tests, run) in runs {
        // What one crate leaves is the next one's.
        let time = time.map(|time| time.saturating_sub(started.elapsed()) / left);
        let of = format!("--test-package={}", packages.join(","));
        tally += run.judge(packages[0], &["--shuffle", &of], &[tests], time)?;
        left -= 1;
    }
    Ok(tally)
}

/// A call of cargo-mutants.
struct Run<'a> {
    workspace: &'a Workspace,
    /// What is mutated: the checkout, of which cargo-mutants makes a copy, or a copy.
    root: PathBuf,
    /// Cargo's target folder.
    target: PathBuf,
    /// Arguments that choose mutants.
    which: Vec<String>,
}

impl Run<'_> {
    /// How many mutants there are.
    fn count(&self) -> Result<usize> {
        let list = self.command(&[], &["--list"]).read().context("cargo mutants --list")?;
        Ok(list.lines().filter(|line| !line.is_empty()).count())
    }

    /// Tries the mutants until the time is over, and says what became of them.
    fn judge(&self, what: &str, how: &[&str], tests: &[&str], time: Option<Duration>) -> Result<Tally> {
        let all = self.count()?;
        let output = self.workspace.target().join("mutations/cargo-mutants");
        if output.exists() {
            fs::remove_dir_all(&output).with_context(|| format!("cannot clear {}", output.display()))?;
        }
        fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
        let started = Instant::now();
        let limit = time.map(|time| time.as_secs().max(1).to_string());
        // Interrupted, it restores the file and its lists hold what was judged.
        let before: Vec<&str> =
            limit.iter().flat_map(|limit| ["timeout", "--signal=INT", "--kill-after=10", limit]).collect();
        let folder = output.to_string_lossy();
        // For the build, too: other tests are not compiled.
        let tests: Vec<String> = tests.iter().map(|test| format!("--cargo-arg={test}")).collect();
        let tests: Vec<&str> = tests.iter().map(String::as_str).collect();
        let how = [how, &tests, &["--no-times", "--output", &folder]].concat();
        let log = self.workspace.logs()?.join("cargo-mutants.log");
        let run = self.command(&before, &how).stderr_to_stdout().stdout_path(&log).unchecked().run()?;
        // 2: some are missed. 3: some ran into the time limit. 124: the time is over.
        if !matches!(run.status.code(), Some(0 | 2 | 3 | 124)) {
            bail!("cargo mutants failed ({}); see {}", run.status, log.display());
        }
        let outcomes = read(&output.join("mutants.out"))?;
        say(&outcomes.line(what, all, started.elapsed()));
        for mutant in &outcomes.missed {
            say(&format!("missed: {mutant}"));
        }
        if outcomes.tried() == 0 {
            bail!("{what}: no mutant was tried; see {}", log.display());
        }
        Ok(outcomes.tally())
    }

    fn command(&self, before: &[&str], how: &[&str]) -> Expression {
        let config = self.workspace.root.join(".cargo/mutants.toml");
        let config = config.to_string_lossy();
        let which: Vec<&str> = self.which.iter().map(String::as_str).collect();
        let fixed = ["cargo", "mutants", "--dir", ".", "--config", &config, "--colors=never"];
        let words = [before, &fixed, &which, how].concat();
        let command = cmd(words[0], &words[1..]).dir(&self.root);
        let command = command
            .env("CARGO_TARGET_DIR", &self.target)
            // Who reads no backtrace needs no line numbers.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // The next mutant changes a line of the same crates, whatever is compiled else.
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_TERM_COLOR", "never")
            .env("RUST_BACKTRACE", "0")
            .env("PATH", self.workspace.path())
            .env("CARGO_NET_OFFLINE", "true")
            .env(SEED.0, SEED.1);
        clean_cargo_env(command)
    }
}

/// Reads the lists that cargo-mutants leaves.
fn read(folder: &Path) -> Result<Outcomes> {
    let lines = |name: &str| -> Result<Vec<String>> {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    Ok(Outcomes {
        caught: lines("caught.txt")?.len(),
        timed_out: lines("timeout.txt")?.len(),
        unviable: lines("unviable.txt")?.len(),
        missed: lines("missed.txt")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_mutants_leaves_is_counted_and_a_missed_mutant_fails() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for (name, text) in [
            ("caught.txt", "a\nb\n"),
            ("timeout.txt", "c\n"),
            ("unviable.txt", ""),
            ("missed.txt", "d: replace < with >\n"),
        ] {
            fs::write(folder.path().join(name), text).expect("written");
        }
        let outcomes = read(folder.path()).expect("readable");
        let missed = vec!["d: replace < with >".to_owned()];
        assert_eq!(outcomes, Outcomes { caught: 2, timed_out: 1, unviable: 0, missed });
        let tally = outcomes.tally();
        assert_eq!((tally.passed, tally.failed), (3, 1));
        assert!(tally.failures[0].contains("d: replace < with >"), "{:?}", tally.failures);
        let line = outcomes.line("sample", 10, Duration::from_secs(7));
        assert!(line.contains("4 of 10 mutants tried in 7 s, 6 not: 2 caught, 1 missed"), "{line}");
    }

    #[test]
    fn lists_that_are_not_there_are_no_success() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn parts_are_numbered_from_one_and_are_together_all() {
        let arguments: Vec<_> =
            (1..=3).map(|number| Part::parse(&format!("{number}/3")).expect("a part").arguments()[1].clone()).collect();
        assert_eq!(arguments, ["--shard=0/3", "--shard=1/3", "--shard=2/3"]);
        for text in ["0/3", "4/3", "1/0", "1", "a/3", "-1/3", ""] {
            let error = Part::parse(text).expect_err(text).to_string();
            assert!(error.contains("K/N"), "{error}");
        }
    }

    #[test]
    fn the_files_of_the_exclusions_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let text = fs::read_to_string(root.join(".cargo/mutants.toml")).expect("readable");
        let table: toml::Table = text.parse().expect("TOML");
        let excluded = table["exclude_re"].as_array().expect("a list");
        for pattern in excluded.iter().filter_map(toml::Value::as_str) {
            let file = pattern.split(".rs").next().unwrap_or_default().replace('\\', "");
            assert!(root.join(format!("{file}.rs")).is_file(), "{pattern} begins with no file of the checkout");
        }
    }
}
