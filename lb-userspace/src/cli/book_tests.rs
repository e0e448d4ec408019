//! Every `ballast` command in the book and in the README is one that the command line understands.

use std::path::{Path, PathBuf};

use clap::{Parser as _, error::ErrorKind};

use super::Cli;

/// The pages with commands: the README and the book, its generated pages left out.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let book = std::fs::read_dir(root.join("docs/src")).expect("the book").flatten().map(|entry| entry.path());
    let mut pages: Vec<_> = book.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// Lines of code blocks, and code within a line.
fn code(page: &str) -> Vec<&str> {
    let (mut found, mut is_block) = (Vec::new(), false);
    for line in page.lines() {
        let text = line.trim_start();
        if text.starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            let text = text.trim_start_matches("$ ").trim_start_matches("# ");
            found.push(text.trim_start_matches("sudo "));
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// The arguments of a command; `None`: it is none, or a pattern with parts to fill in.
fn arguments(code: &str) -> Option<Vec<String>> {
    let command = code.strip_prefix("ballast ")?;
    let end = ["  #", " # ", " > ", " | "].iter().filter_map(|end| command.find(end)).min().unwrap_or(command.len());
    let words: Vec<String> = command[..end].split_whitespace().map(|word| word.replace(['\'', '"'], "")).collect();
    let is_placeholder = |word: &String| {
        let letters = word.trim_matches(|end: char| "[]".contains(end));
        word.contains(['…', '\\', '|'])
            || (letters.len() > 1 && letters.chars().all(|letter| letter.is_ascii_uppercase()))
    };
    let is_pattern =
        words.iter().any(|word| is_placeholder(word) || word.starts_with("[--") || word.contains("ADDRESS"));
    (!is_pattern).then_some(words)
}

#[test]
fn every_command_of_the_book_is_understood() {
    let mut understood = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for code in code(&text) {
            let Some(arguments) = arguments(code) else { continue };
            let parsed = Cli::try_parse_from(std::iter::once("ballast".to_owned()).chain(arguments));
            if let Err(error) = parsed {
                // Prose names commands without their arguments.
                let is_name = matches!(
                    error.kind(),
                    ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                );
                assert!(is_name, "{}: `{code}`: {error}", page.display());
            }
            understood += 1;
        }
    }
    assert!(understood > 100, "{understood} commands were found");
}
