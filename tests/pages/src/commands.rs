//! The commands that the pages show: tests parse all of them, and run those that only read.
//!
//! A code block whose commands no test runs as they are says so in the line above it, in a comment of the page: `<!-- not run: REASON -->`. A block
//! that a test of its own carries out names the file of the test: `<!-- run by: NAME -->`.

use std::fs;
use std::path::{Path, PathBuf};

/// The programs that the tests know.
const PROGRAMS: [&str; 4] = ["ballast", "kubectl", "cargo xtask", "bpftool"];

/// A command as a page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// From the root of the checkout.
    pub page: String,
    pub line: usize,
    /// Without prompt, `sudo`, variables, comment, redirection, and what follows in a pipe.
    pub text: String,
    /// `None`: it is in the prose.
    pub block: Option<Block>,
}

/// What the page says of the block that holds a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Block {
    /// Nothing: the test of the namespaces runs it.
    Run,
    /// Another test does. Its file has this name.
    RunBy(String),
    /// No test does, for this reason.
    NotRun(String),
}

impl Command {
    /// Its words, without the marks of a shell. `None`: it is a pattern with parts to fill in.
    pub fn words(&self) -> Option<Vec<String>> {
        let words: Vec<String> = self.text.split_whitespace().map(|word| word.replace(['\'', '"'], "")).collect();
        let is_pattern = words.iter().any(|word| is_placeholder(word) || word.starts_with("[--"));
        (!is_pattern).then_some(words)
    }

    /// The arguments, if it is a command of this program and no pattern.
    pub fn arguments(&self, program: &str) -> Option<Vec<String>> {
        let count = program.split(' ').count();
        let is_own = self.text == program || self.text.starts_with(&format!("{program} "));
        is_own.then(|| self.words()).flatten().map(|words| words[count..].to_vec())
    }
}

/// Words in capitals that are no parts to fill in.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

fn is_placeholder(word: &str) -> bool {
    let is_name = |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_uppercase());
    let mut parts = word.split(['/', ':', '[', ']', ',', '=']);
    word.contains(['…', '\\', '|'])
        || word.contains("$((")
        || parts.any(|part| is_name(part) && !PROTOCOLS.contains(&part))
}

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that are written by hand: those at the root, the book, and those beside what they describe.
pub fn pages() -> Vec<(String, String)> {
    let root = root();
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)).into();
    for folder in ["docs/src", "deploy", "deploy/image", "deploy/monitoring", "tests", "tests/mutations", "tests/bench"]
    {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten().map(|entry| entry.path());
        paths.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.strip_prefix(&root).unwrap_or(&path).display().to_string(), text)
    };
    paths.into_iter().map(read).collect()
}

/// The commands of all pages.
pub fn all() -> Vec<Command> {
    pages().iter().flat_map(|(page, text)| of_page(page, text)).collect()
}

/// The commands of a page.
pub fn of_page(page: &str, text: &str) -> Vec<Command> {
    let (mut found, mut block, mut above, mut span) = (Vec::new(), None, "", Span::default());
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let mut add = |line: usize, code: &str, block: &Option<Block>| {
            let commands = commands_of(code).into_iter();
            found.extend(commands.map(|text| Command { page: page.to_owned(), line, text, block: block.clone() }));
        };
        if trimmed.starts_with("```") {
            block = if block.is_some() { None } else { Some(said(above)) };
        } else if block.is_some() {
            add(index + 1, trimmed, &block);
        } else {
            span.read(index + 1, trimmed).iter().for_each(|(line, code)| add(*line, code, &None));
        }
        above = trimmed;
    }
    found
}

/// Code within prose, which may go on in the next line of its paragraph.
#[derive(Default)]
struct Span {
    open: Option<(usize, String)>,
}

impl Span {
    /// The code that ends in this line, each with the line where it begins.
    fn read(&mut self, number: usize, line: &str) -> Vec<(usize, String)> {
        let mut done = Vec::new();
        if line.is_empty() || line.starts_with('|') {
            self.open = None;
        }
        let mut parts = line.split('`');
        let before = parts.next().unwrap_or_default();
        if let Some((_, code)) = &mut self.open {
            code.push(' ');
            code.push_str(before);
        }
        for part in parts {
            match self.open.take() {
                Some(code) => done.push(code),
                None => self.open = Some((number, part.to_owned())),
            }
        }
        done
    }
}

/// What the line above a block says.
fn said(line: &str) -> Block {
    let part = |name: &str| {
        let rest = line.strip_prefix("<!-- ")?.strip_prefix(name)?.strip_suffix("-->")?;
        Some(rest.trim().to_owned())
    };
    if let Some(test) = part("run by:") {
        return Block::RunBy(test);
    }
    part("not run:").map_or(Block::Run, Block::NotRun)
}

/// The commands of known programs in a line of code: the parts of a pipe, and what runs in a container.
fn commands_of(code: &str) -> Vec<String> {
    let code = code.trim_start_matches("$ ");
    let end = ["  #", " # "].iter().filter_map(|end| code.find(end)).min().unwrap_or(code.len());
    let mut found = Vec::new();
    for part in code[..end].split([';']).flat_map(|part| part.split(" && ")).flat_map(|part| part.split(" -- ballast "))
    {
        let is_inner =
            found.last().is_some_and(|before: &String| before.starts_with("kubectl")) && code.contains(" -- ballast ");
        let part = part.split(" | ").next().unwrap_or_default().split(" > ").next().unwrap_or_default();
        let bare = without_beginning(part.trim());
        let text = if is_inner { format!("ballast {bare}") } else { bare.to_owned() };
        if PROGRAMS.iter().any(|program| text == *program || text.starts_with(&format!("{program} "))) {
            found.push(text);
        }
    }
    found
}

/// Without the prompt of root, `sudo`, variables, the path of the built agent, and the word of a loop.
fn without_beginning(mut text: &str) -> &str {
    loop {
        let before = text;
        for word in ["# ", "sudo ", "-E ", "while ", "target/debug/"] {
            text = text.strip_prefix(word).unwrap_or(text);
        }
        let is_variable = |word: &str| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
            })
        };
        if let Some((_, rest)) = text.split_once(' ').filter(|(word, _)| is_variable(word)) {
            text = rest;
        }
        if text == before {
            return text;
        }
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
