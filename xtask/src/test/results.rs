//! What became of the rungs: kept in files below `target`, and shown in `target/ladder.json` and at the end of a run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use duct::cmd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Tally;
use crate::workspace::Workspace;

/// So many of the slowest tests are named at the end: they are where the ladder's time can be saved.
const SLOWEST: usize = 12;

/// What became of a rung.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub name: String,
    pub budget: u32,
    pub seconds: f64,
    /// How many processors it used on average: its processes, and those that they waited for.
    pub cpu: f64,
    pub tally: Tally,
}

impl Outcome {
    pub fn passed(&self) -> bool {
        self.tally.failed == 0
    }

    fn is_over_budget(&self) -> bool {
        self.budget > 0 && self.seconds > f64::from(self.budget)
    }

    /// The command that repeats it if it failed: of its tests only the one that failed, if that is one.
    pub fn repeat(&self, seed: u64, is_long: bool) -> String {
        let long = if is_long { "--long " } else { "" };
        let filter = match &*self.tally.failures {
            [test] if test.contains("::") && !test.contains(' ') => format!(" -- {test}"),
            _ => String::new(),
        };
        format!("BALLAST_TEST_SEED={seed} cargo xtask test {long}--rung {}{filter}", self.name)
    }
}

/// The checkout that a run is of.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub commit: String,
    /// git's name for what the files hold, committed or not. Empty: unknown.
    pub tree: String,
    pub is_dirty: bool,
}

impl Source {
    /// Of a checkout that git does not know: nothing is kept of its runs.
    pub fn of(workspace: &Workspace) -> Self {
        Self::from_git(workspace).unwrap_or_else(|_| Self { is_dirty: true, ..Self::default() })
    }

    /// Whether the files still hold what they held: what was found out of them may be kept.
    pub fn is_still_of(&self, workspace: &Workspace) -> bool {
        !self.tree.is_empty() && Self::of(workspace).tree == self.tree
    }

    /// The user's index and objects stay as they are.
    fn from_git(workspace: &Workspace) -> Result<Self> {
        let folder = tempfile::tempdir_in(folder(workspace)?)?;
        let (index, objects) = (folder.path().join("index"), folder.path().join("objects"));
        fs::create_dir(&objects)?;
        let common = cmd!("git", "rev-parse", "--path-format=absolute", "--git-path", "objects");
        let common = common.dir(&workspace.root).stderr_null().read()?;
        let git = |words: &[&str]| {
            let command = cmd("git", words).dir(&workspace.root).env("GIT_INDEX_FILE", &index);
            command
                .env("GIT_OBJECT_DIRECTORY", &objects)
                .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &common)
                .stderr_null()
                .read()
        };
        git(&["add", "--all"])?;
        let [tree, commit, committed] =
            [git(&["write-tree"])?, git(&["rev-parse", "HEAD"])?, git(&["rev-parse", "HEAD^{tree}"])?];
        Ok(Self { commit, is_dirty: tree != committed, tree })
    }
}

fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("ladder");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Keeps a thing under this name, until another one is: it is of the tree or the run that `of` names.
pub fn keep(workspace: &Workspace, name: &str, of: &str, thing: &impl Serialize) -> Result<()> {
    write(&folder(workspace)?.join(format!("{name}.json")), &json!({ "of": of, "kept": thing }))
}

/// What was kept under this name and is of this.
pub fn kept<T: DeserializeOwned>(workspace: &Workspace, name: &str, of: &str) -> Option<T> {
    let text = fs::read_to_string(folder(workspace).ok()?.join(format!("{name}.json"))).ok()?;
    let mut value: Value = serde_json::from_str(&text).ok()?;
    if value["of"] == of { serde_json::from_value(value["kept"].take()).ok() } else { None }
}

/// In one step: who reads it meanwhile finds the older or the newer one.
fn write(file: &Path, value: &Value) -> Result<()> {
    let part = file.with_extension(format!("part{}", std::process::id()));
    fs::write(&part, format!("{value:#}\n")).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, file).with_context(|| format!("cannot replace {}", file.display()))
}

/// Writes `target/ladder.json`. `expected`: the names of all rungs of this form, which must have passed.
pub fn report(
    workspace: &Workspace,
    source: &Source,
    is_long: bool,
    seconds: f64,
    expected: &BTreeSet<String>,
    outcomes: &[Outcome],
) -> Result<()> {
    write(&workspace.target().join("ladder.json"), &as_json(source, is_long, seconds, expected, outcomes))
}

fn as_json(source: &Source, is_long: bool, seconds: f64, expected: &BTreeSet<String>, outcomes: &[Outcome]) -> Value {
    let tenths = |number: f64| (number * 10.0).round() / 10.0;
    let passed: BTreeSet<&String> = outcomes.iter().filter(|one| one.passed()).map(|one| &one.name).collect();
    let rung = |one: &Outcome| {
        json!({
            "name": one.name,
            "budget": one.budget,
            "seconds": tenths(one.seconds),
            "cpu": (one.cpu * 100.0).round() / 100.0,
            "result": if one.passed() { "passed" } else { "failed" },
        })
    };
    json!({
        "commit": source.commit,
        "dirty": source.is_dirty,
        "form": super::form(is_long),
        "passed": outcomes.iter().all(Outcome::passed) && expected.iter().all(|name| passed.contains(name)),
        "seconds": tenths(seconds),
        "rungs": outcomes.iter().map(rung).collect::<Vec<_>>(),
    })
}

/// Prints what became of each rung, what failed and how to repeat it, the slowest tests, and the line that CI reads.
pub fn summary(prepared: f64, outcomes: &[Outcome], seed: u64, is_long: bool) -> Tally {
    println!(
        "\n{:<21} {:>6} {:>6} {:>7} {:>8} {:>7} {:>5}",
        "rung", "passed", "failed", "budget", "seconds", "waiting", "CPU"
    );
    println!("{:<21} {:>6} {:>6} {:>7} {prepared:>8.1}", "setup and build", "", "", "");
    let mut total = Tally::default();
    for one in outcomes {
        let percent = |share: f64| format!("{:.0}%", share.max(0.0) * 100.0);
        let over = if one.is_over_budget() { "  over budget" } else { "" };
        println!(
            "{:<21} {:>6} {:>6} {:>7} {:>8.1} {:>7} {:>5}{over}",
            one.name,
            one.tally.passed,
            one.tally.failed,
            one.budget,
            one.seconds,
            percent(1.0 - one.cpu),
            percent(one.cpu)
        );
        total += one.tally.clone();
    }
    if total.failed > 0 {
        println!("\nfailed:");
        for one in outcomes.iter().filter(|one| !one.passed()) {
            one.tally.failures.iter().for_each(|name| println!("  {name}"));
            println!("    {}", one.repeat(seed, is_long));
        }
    }
    total.times.sort_unstable_by(|one, other| other.cmp(one));
    println!("\nslowest tests:");
    for (time, name) in total.times.iter().take(SLOWEST) {
        println!("{:>9.1}  {name}", time.as_secs_f64());
    }
    let over = outcomes.iter().filter(|one| one.is_over_budget()).count();
    println!("\n{over} of {} rungs took longer than their budgets\n{}", outcomes.len(), total.line());
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, passes: bool) -> Outcome {
        let tally = Tally::one(&format!("{name}::deadline"), passes);
        Outcome { name: name.to_owned(), budget: 30, seconds: 41.26, cpu: 0.254, tally }
    }

    fn expected() -> BTreeSet<String> {
        ["drain", "packet"].map(str::to_owned).into()
    }

    #[test]
    fn a_run_leaves_a_file_for_other_programs() {
        let source = Source { commit: "0123abcd".into(), tree: "4567".into(), is_dirty: false };
        let mut outcomes = vec![outcome("drain", true)];
        let cut = as_json(&source, false, 60.04, &expected(), &outcomes);
        let golden = json!({
            "commit": "0123abcd",
            "dirty": false,
            "form": "short",
            "passed": false,
            "seconds": 60.0,
            "rungs": [{ "name": "drain", "budget": 30, "seconds": 41.3, "cpu": 0.25, "result": "passed" }],
        });
        assert_eq!(cut, golden, "one rung is missing");
        outcomes.push(outcome("packet", false));
        let failed = as_json(&source, false, 60.0, &expected(), &outcomes);
        assert_eq!((&failed["passed"], &failed["rungs"][1]["result"]), (&json!(false), &json!("failed")));
        outcomes[1] = outcome("packet", true);
        let passed = as_json(&source, true, 60.0, &expected(), &outcomes);
        assert_eq!((&passed["passed"], &passed["form"]), (&json!(true), &json!("long")));
    }

    #[test]
    fn one_command_repeats_a_rung_that_failed() {
        let mut outcome = outcome("drain", false);
        let short = "BALLAST_TEST_SEED=7 cargo xtask test --rung drain -- drain::deadline";
        assert_eq!(outcome.repeat(7, false), short);
        outcome.tally += Tally::one("drain::other", false);
        assert_eq!(outcome.repeat(7, true), "BALLAST_TEST_SEED=7 cargo xtask test --long --rung drain");
        assert!(outcome.is_over_budget() && !outcome.passed());
    }

    #[test]
    fn what_is_kept_is_read_again_and_what_the_files_hold_has_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        let workspace = Workspace { tools: root.clone(), cache: root.clone(), root };
        keep(&workspace, "a-test", "4567", &outcome("drain", true)).expect("kept");
        assert!(kept::<Outcome>(&workspace, "a-test", "4567").is_some_and(|one| one.passed() && one.cpu > 0.25));
        assert!(kept::<Outcome>(&workspace, "a-test", "89ab").is_none(), "of another tree");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let source = Source::of(&Workspace { root: root.to_owned(), ..workspace });
        assert_eq!(source.commit.len(), source.tree.len(), "of a checkout of git: {source:?}");
    }
}
