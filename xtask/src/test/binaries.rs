//! The test binaries of `tests/tests`: what they hold, where cargo put them, and how a part of one is run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use duct::{Expression, cmd};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::test_environment;
use crate::process::say;
use crate::workspace::Workspace;

/// The binaries, cheapest first. Each file `main.rs` is a list of modules, and each module is a rung.
pub const BINARIES: [&str; 4] = ["core", "packets", "namespaces", "cluster"];

/// Modules whose tests mostly wait: each test has servers to itself on loopback, or networks of its own.
const SIDE_BY_SIDE: [&str; 4] = ["api_faults", "freshness", "kube", "scenes"];

/// A module of a test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub binary: &'static str,
    pub name: String,
}

/// All modules, in the order of the binaries and of their lists: a new one is never forgotten, as it would not compile.
pub fn modules(root: &Path) -> Result<Vec<Module>> {
    let mut all = Vec::new();
    for binary in BINARIES {
        let path = root.join("tests/tests").join(binary).join("main.rs");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        all.extend(listed(&text).map(|name| Module { binary, name: name.to_owned() }));
    }
    Ok(all)
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
}

/// Where cargo put each binary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Built(BTreeMap<String, PathBuf>);

impl Built {
    /// Builds these binaries; the compiler's output is shown.
    pub fn build(workspace: &Workspace, binaries: &[&str]) -> Result<Self> {
        if binaries.is_empty() {
            return Ok(Self::default());
        }
        say(&format!("building the tests: {}", binaries.join(", ")));
        let mut arguments =
            vec!["test", "--locked", "-p", "lb-tests", "--no-run", "--message-format=json-render-diagnostics"];
        for binary in binaries {
            arguments.extend(["--test", binary]);
        }
        let command = test_environment(workspace, &cmd("cargo", arguments), &workspace.object());
        let messages = command.read().context("building the tests")?;
        let built =
            Self(binaries.iter().filter_map(|name| Some(((*name).to_owned(), executable(&messages, name)?))).collect());
        if built.0.len() != binaries.len() {
            bail!("cargo built {:?} of {binaries:?}", built.0.keys());
        }
        Ok(built)
    }

    /// The command that runs the tests of a module whose names contain `filter`. An error: there is none.
    pub fn command(&self, workspace: &Workspace, module: &Module, filter: Option<&str>) -> Result<Expression> {
        let program = self.0.get(module.binary).with_context(|| format!("{} was not built", module.binary))?;
        let names = tests_of_module(program, &module.name, filter)?;
        // They share one kernel's network namespaces and time: one at a time.
        let threads = if SIDE_BY_SIDE.contains(&module.name.as_str()) { "3" } else { "1" };
        let mut arguments = vec!["--exact".to_owned(), format!("--test-threads={threads}")];
        arguments.extend(names);
        // As cargo does: paths of regressions and the like are looked up from the package.
        Ok(cmd(program, arguments).dir(workspace.root.join("tests")))
    }
}

/// The tests of a module of this binary whose names contain `filter`. An error: there is none.
pub fn tests_of_module(program: &Path, module: &str, filter: Option<&str>) -> Result<Vec<String>> {
    let list = cmd!(program, "--list", "--format", "terse").read().context("listing the tests")?;
    let names = tests_of(&list, module, filter);
    if names.is_empty() {
        bail!("{module} holds no test whose name contains {:?}", filter.unwrap_or_default());
    }
    Ok(names)
}

/// Names are given whole: as a filter, `direct::` would also choose those of `north_south_direct`.
fn tests_of(list: &str, module: &str, filter: Option<&str>) -> Vec<String> {
    let prefix = format!("{module}::");
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| name.starts_with(&prefix) && filter.is_none_or(|filter| name.contains(filter)))
        .map(str::to_owned)
        .collect()
}

/// Where cargo says that it put the test binary of this name.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let is_it = message["target"]["name"] == name && message["target"]["kind"][0] == "test";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_where_a_test_is() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"guest_sctp"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"guest_sctp"},"executable":"/t/guest_sctp-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "guest_sctp"), Some(PathBuf::from("/t/guest_sctp-1")));
        assert_eq!(executable(messages, "guest_agent"), None);
    }

    #[test]
    fn a_module_has_its_own_tests_and_no_others() {
        let list = "direct::a: test\nnorth_south_direct::a: test\ndirect::part::b: test\ndirect::c: benchmark\n";
        assert_eq!(tests_of(list, "direct", None), ["direct::a", "direct::part::b"]);
        assert_eq!(tests_of(list, "direct", Some("part")), ["direct::part::b"]);
        assert!(tests_of(list, "direct", Some("x")).is_empty());
    }

    #[test]
    fn every_file_of_the_binaries_is_a_rung_or_part_of_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let modules = modules(root).expect("listed");
        for binary in BINARIES {
            let folder = root.join("tests/tests").join(binary);
            for entry in fs::read_dir(folder).expect("there").map(|entry| entry.expect("readable").path()) {
                let name = entry.file_stem().expect("a name").to_string_lossy().into_owned();
                assert!(
                    name == "main" || modules.iter().any(|module| module.name == name),
                    "{} runs nowhere",
                    entry.display()
                );
            }
        }
        let mut names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two rungs have one name: {names:?}");
    }
}
