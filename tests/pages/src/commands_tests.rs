//! Commands are found as a reader finds them. Files and objects that they name exist, and blocks that no test runs say why.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use super::*;

/// Blocks that no test runs. The number falls; one more needs a reason that a reviewer accepts.
const NOT_RUN: usize = 17;

/// Objects that the cluster has, and not our manifests.
const OTHERS: [&str; 1] = ["kube-proxy"];

fn texts(page: &str) -> Vec<String> {
    of_page("page.md", page).into_iter().map(|command| command.text).collect()
}

#[test]
fn commands_are_found_as_a_reader_finds_them() {
    assert_eq!(
        texts(
            "Ask `ballast status` or `x`, or `cargo xtask test --rung\nb`.\n\n```console\n$ sudo -E cargo xtask test --rung a   # why\n# ballast get services | head\noutput\n```\n\
             ```sh\nA_B=c cargo xtask run -- --x\nwhile ballast status | grep -q '^A:'; do sleep 1; done\nsudo target/debug/ballast agent && ballast top\n\
             kubectl exec POD -- ballast sysdump - > x\n```\n"
        ),
        [
            "ballast status",
            "cargo xtask test --rung b",
            "cargo xtask test --rung a",
            "ballast get services",
            "cargo xtask run -- --x",
            "ballast status",
            "ballast agent",
            "ballast top",
            "kubectl exec POD",
            "ballast sysdump -",
        ]
    );
}

#[test]
fn a_block_says_in_the_line_above_it_who_runs_it() {
    let page = "```sh\nballast status\n```\n<!-- not run: needs a cluster -->\n```sh\nballast top\n```\n<!-- run by: takeover -->\n```sh\nballast get\n```\n`ballast plan`";
    let blocks: Vec<_> = of_page("page.md", page).into_iter().map(|command| command.block).collect();
    let expected = [
        Some(Block::Run),
        Some(Block::NotRun("needs a cluster".to_owned())),
        Some(Block::RunBy("takeover".to_owned())),
        None,
    ];
    assert_eq!(blocks, expected);
}

#[test]
fn a_pattern_is_no_command() {
    for (page, is_command) in
        [("`ballast get services -A`", true), ("`ballast get NAME`", false), ("`ballast get [--rate]`", false)]
    {
        assert_eq!(of_page("page.md", page)[0].words().is_some(), is_command, "{page}");
    }
}

/// Those of the pages, in code blocks.
fn blocks() -> BTreeSet<(String, Block)> {
    all().into_iter().filter_map(|command| Some((command.page, command.block?))).collect()
}

#[test]
fn tests_that_run_a_block_are_there() {
    let mut files = BTreeSet::new();
    let mut folders: Vec<_> = ["tests/tests", "tests/src", "xtask/src"].map(|folder| root().join(folder)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
            files.insert(entry.path().file_stem().and_then(OsStr::to_str).unwrap_or_default().to_owned());
        }
    }
    for (page, block) in blocks() {
        if let Block::RunBy(test) = block {
            assert!(files.contains(&test), "{page}: there is no test {test}");
        }
    }
}

/// The test of the namespaces runs commands of the agent that only read; all other blocks say who runs them, or why nobody does.
#[test]
fn a_block_that_is_not_run_says_why() {
    for command in all().iter().filter(|command| command.block == Some(Block::Run)) {
        let at = format!("{}:{}: {}", command.page, command.line, command.text);
        let is_run = ["ballast ", "bpftool map "].iter().any(|program| command.text.starts_with(program));
        assert!(
            is_run && command.words().is_some(),
            "{at}: the line above the block says who runs it, or why nobody does"
        );
    }
    let of_page = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("<!-- not run: ")).count();
    let count: usize = pages().iter().map(|(_, text)| of_page(text)).sum();
    assert_eq!(count, NOT_RUN, "blocks that no test runs");
}

#[test]
fn kubectl_names_files_and_objects_that_there_are() {
    let manifests = manifests();
    let mut checked = 0;
    for command in all() {
        let Some(words) = command.arguments("kubectl") else { continue };
        let at = format!("{}:{}: {}", command.page, command.line, command.text);
        for pair in words.windows(2).filter(|pair| ["-k", "-f", "--patch-file"].contains(&pair[0].as_str())) {
            assert!(root().join(&pair[1]).exists(), "{at}: there is no {}", pair[1]);
            checked += 1;
        }
        let objects = words.iter().filter_map(|word| word.strip_prefix("daemonset/"));
        for object in objects {
            let is_there = OTHERS.contains(&object) || manifests.contains(object);
            assert!(is_there, "{at}: there is no {object}");
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} names were found");
}

/// The text of all manifests.
fn manifests() -> String {
    let (mut text, mut folders) = (String::new(), vec![root().join("deploy")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("deploy").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|end| end == "yaml") {
                text += &fs::read_to_string(entry.path()).expect("a manifest");
            }
        }
    }
    text
}
