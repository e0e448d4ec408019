//! Words that are retired: one thing has one word, and `retired-words.toml` lists those that were replaced.

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Deserialize;

use super::files::File;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// A regular expression.
    word: String,
    /// What to write instead.
    r#use: String,
    /// Where it is retired.
    #[serde(default)]
    from: From,
    /// Files that may use it.
    #[serde(default)]
    except: Vec<String>,
}

/// Where a word is retired: names in code take longer than text.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum From {
    Pages,
    /// Pages and comments.
    Text,
    #[default]
    Everything,
}

#[derive(Deserialize)]
struct List {
    retired: Vec<Entry>,
}

/// The entries of the list, with their patterns.
struct Retired {
    entries: Vec<Entry>,
    patterns: Vec<Regex>,
    /// All patterns at once: most texts match none.
    any: RegexSet,
}

fn parse(list: &str) -> Retired {
    let List { retired: entries } = toml::from_str(list).expect("the list of retired words");
    let sources: Vec<String> = entries.iter().map(|entry| format!(r"\b(?:{})\b", entry.word)).collect();
    let build =
        |source: &String| RegexBuilder::new(source).case_insensitive(true).build().expect("a regular expression");
    let patterns = sources.iter().map(build).collect();
    let any = RegexSetBuilder::new(&sources).case_insensitive(true).build().expect("regular expressions");
    Retired { entries, patterns, any }
}

/// Retired words in the prose and, of a source file, in the names of its code.
fn findings(retired: &Retired, file: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut check = |place: From, text: &str, line: usize| {
        for index in retired.any.matches(text) {
            let entry = &retired.entries[index];
            if entry.from < place || entry.except.contains(&file.path) {
                continue;
            }
            for hit in retired.patterns[index].find_iter(text) {
                found.push((line, format!("\"{}\" is retired, use: {}", hit.as_str(), entry.r#use)));
            }
        }
    };
    let mut in_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        let comment = line.trim_start().strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!']));
        let prose = if file.is_page() { Some(line) } else { comment };
        in_code = prose.is_some_and(|prose| in_code ^ prose.trim_start().starts_with("```"));
        match prose {
            Some(_) if in_code => {}
            Some(prose) => check(if file.is_page() { From::Pages } else { From::Text }, prose, number),
            None => check(From::Everything, &name_parts(line), number),
        }
    }
    found
}

/// The line with a space between the parts of each name.
fn name_parts(line: &str) -> String {
    let mut parts = String::new();
    let mut before = ' ';
    for c in line.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            parts.push(' ');
        }
        parts.push(if c == '_' { ' ' } else { c });
        before = c;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, assert_none, files, root};
    use super::*;

    const LIST: &str = "xtask/src/text/retired-words.toml";

    fn list() -> Retired {
        parse(&std::fs::read_to_string(root().join(LIST)).expect("the list of retired words"))
    }

    /// The changelog tells users which names are gone.
    #[test]
    fn no_retired_word_is_used() {
        let retired = list();
        let mut all = Vec::new();
        for file in files::read(root()) {
            if !["CHANGELOG.md", "xtask/src/text/words.rs"].contains(&file.path.as_str()) {
                let of = |(line, problem)| Finding { file: file.path.clone(), line, problem };
                all.extend(findings(&retired, &file).into_iter().map(of));
            }
        }
        assert_none(&format!("retired words ({LIST})"), &all);
    }

    /// An exception that nothing needs any more hides the next use.
    #[test]
    fn every_exception_is_needed() {
        let mut retired = list();
        let exceptions: Vec<Vec<String>> =
            retired.entries.iter_mut().map(|entry| std::mem::take(&mut entry.except)).collect();
        for (index, path) in
            exceptions.iter().enumerate().flat_map(|(index, paths)| paths.iter().map(move |path| (index, path)))
        {
            let text = std::fs::read_to_string(root().join(path)).expect("the file of an exception exists");
            let found = findings(&retired, &File { path: path.clone(), text });
            let needed = found.iter().any(|(_, problem)| problem.ends_with(&retired.entries[index].r#use));
            assert!(needed, "{path} does not use \"{}\": remove the exception", retired.entries[index].word);
        }
    }

    fn lines(list: &str, path: &str, text: &str) -> Vec<usize> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        findings(&parse(list), &file).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn names_and_prose_are_searched_but_no_block_of_code() {
        let list = "[[retired]]\nword = 'sent whole|twins?'\nuse = 'DSR'\nexcept = ['b.md']";
        assert_eq!(lines(list, "a.md", "It is Sent whole.\n```\ntwin\n```\ntwin"), [1, 5]);
        assert!(lines(list, "b.md", "It is sent whole.").is_empty());
        assert_eq!(lines(list, "a.rs", "// A twin.\nlet its_twin = TwinOf::new();\nlet entwined = 1;"), [1, 2, 2]);
    }

    #[test]
    fn a_word_may_be_retired_from_text_only() {
        let source = "// A twin.\nlet twin = 1;";
        assert_eq!(lines("[[retired]]\nword = 'twin'\nuse = 'model'\nfrom = 'text'", "a.rs", source), [1]);
        assert!(lines("[[retired]]\nword = 'twin'\nuse = 'model'\nfrom = 'pages'", "a.rs", source).is_empty());
    }
}
