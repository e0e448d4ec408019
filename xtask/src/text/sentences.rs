//! A sentence says one thing: it has at most 25 words in a page, and at most 30 elsewhere. In pages its subject is a noun.

use super::files::ends_in;
use super::passages::Passage;

/// More words than these are more than one thing: in comments of code, in the changelog and in decisions.
pub const MAX_WORDS: usize = 30;
/// More words than these are more than one thing in every other page.
pub const MAX_WORDS_PAGE: usize = 25;

/// How many words a sentence of this file may have.
fn most(path: &str) -> usize {
    let is_short = ends_in(path, "md") && path != "CHANGELOG.md" && !path.starts_with("docs/adr/");
    if is_short { MAX_WORDS_PAGE } else { MAX_WORDS }
}

/// Sentences in pages do not begin with these, unless they are questions: the subject is a noun.
const NO_SUBJECTS: [&str; 5] = ["What", "Who", "Whoever", "Whatever", "Nobody"];

/// The sentences of a passage, each with where it begins. A semicolon ends one, too.
pub fn sentences(text: &str) -> Vec<(usize, &str)> {
    let mut begin = 0;
    let mut found = Vec::new();
    for (at, _) in text.match_indices([' ']) {
        let before = text[begin..at].trim_end_matches(['"', '”', ')', '*', '_']);
        if before.ends_with(['.', '!', '?']) || text[begin..at].ends_with(';') {
            found.push((begin, &text[begin..at]));
            begin = at + 1;
        }
    }
    found.push((begin, &text[begin..]));
    found.retain(|(_, sentence)| !sentence.trim().is_empty());
    found
}

/// How many words a reader counts: a code span is one word, and a link counts by its text.
pub fn count(sentence: &str) -> usize {
    let mut plain = String::new();
    for (index, part) in sentence.split('`').enumerate() {
        plain.push_str(if index % 2 == 0 { part } else { "x" });
    }
    while let Some(at) = plain.find("](") {
        let end = plain[at..].find(')').map_or(plain.len(), |length| at + length);
        plain.replace_range(at..end, "");
    }
    plain.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// What is wrong with the sentences of a passage, each with its line.
fn findings(passage: &Passage, is_page: bool, most: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (begin, sentence) in sentences(&passage.text) {
        let first: Vec<&str> = sentence.split_whitespace().take(8).collect();
        let words = count(sentence);
        if words > most {
            found.push((passage.line_at(begin), format!("{words} words: {} …", first.join(" "))));
        }
        if is_page && !passage.is_heading && lacks_subject(sentence) {
            found.push((passage.line_at(begin), format!("the subject is no noun: {} …", first.join(" "))));
        }
    }
    found
}

fn lacks_subject(sentence: &str) -> bool {
    let mut words = sentence.trim_start_matches(['*', '_', '(', '"']).split_whitespace();
    let begins = words.next().is_some_and(|word| NO_SUBJECTS.contains(&word.trim_end_matches(['*', '_', ',', ':'])));
    let ends = sentence.trim_end_matches(['*', '_', ')', '"']);
    begins && words.next().is_some() && ends.ends_with(['.', ';', ','])
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, assert_none, files, passages, root};
    use super::*;

    #[test]
    fn every_sentence_says_one_thing() {
        let mut all = Vec::new();
        for file in files::read(root()) {
            for passage in file.passages() {
                let of = |(line, problem)| Finding { file: file.path.clone(), line, problem };
                all.extend(findings(&passage, file.is_page(), most(&file.path)).into_iter().map(of));
            }
        }
        assert_none("at most 25 words in a sentence of a page (30 elsewhere), and a noun as its subject", &all);
    }

    fn of(page: &str) -> Vec<(usize, String)> {
        passages::of_page(page).iter().flat_map(|passage| findings(passage, true, MAX_WORDS)).collect()
    }

    #[test]
    fn a_sentence_ends_at_its_mark_and_at_a_semicolon() {
        let all = |text| sentences(text).into_iter().map(|(_, sentence)| sentence).collect::<Vec<_>>();
        assert_eq!(
            all("One. (Two!) **Three?** four; five: six 1.5 s"),
            ["One.", "(Two!)", "**Three?**", "four;", "five: six 1.5 s"]
        );
    }

    #[test]
    fn code_and_links_count_as_a_reader_counts_them() {
        assert_eq!(count("The `a b c` of [two words](a/long link.md) – 30 %"), 6);
    }

    #[test]
    fn a_long_sentence_is_found_with_its_line() {
        let long = format!("Short.\nThis sentence{} ends.", " goes on".repeat(14));
        let found = of(&long);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 2);
        assert!(found[0].1.starts_with("31 words: This sentence goes on"), "{}", found[0].1);
        assert_eq!(of(&long.replacen(" goes on", "", 1)), []);
    }

    #[test]
    fn pages_have_shorter_sentences_than_code_the_changelog_and_decisions() {
        let long = passages::of_page(&format!("This sentence{} ends.", " goes on".repeat(12)));
        let found = |path| findings(&long[0], true, most(path)).len();
        assert_eq!(["README.md", "docs/src/drains.md", "tests/mutations/README.md"].map(found), [1; 3]);
        assert_eq!(["CHANGELOG.md", "docs/adr/template.md", "xtask/src/main.rs"].map(found), [0; 3]);
    }

    #[test]
    fn a_subject_is_a_noun() {
        assert_eq!(of("Who cannot look must not skip.").len(), 1);
        assert_eq!(
            of("**Nobody** may know.\n\n# What it does\n\nWhat now? The agent knows.\n\n| What |"),
            [(1, "the subject is no noun: **Nobody** may know. …".to_owned())]
        );
    }
}
