//! Results in the book: the table of the goals between two marks of the page.

use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::{Figure, Part};
use crate::targets;

/// The page within the book.
const PAGE: &str = "performance.md";
/// What is between them is written by the bench.
const BEGIN: &str = "<!-- goals: written by `cargo xtask bench all` -->";
const END: &str = "<!-- goals end -->";

/// What was left out of them, and why, each once.
pub fn left_out(parts: &[Part]) -> Vec<&str> {
    let mut reasons = Vec::new();
    for reason in parts.iter().flat_map(|part| &part.left_out) {
        if !reasons.contains(&reason.as_str()) {
            reasons.push(reason.as_str());
        }
    }
    reasons
}

/// Writes the table of all goals into the sources of the book.
pub fn write(book: &Path, parts: &[Part], heading: &str) -> Result<()> {
    let figures: Vec<Figure> = parts.iter().flat_map(|part| part.figures.clone()).collect();
    let left_out: Vec<String> = left_out(parts).into_iter().map(|reason| format!("* {reason}\n")).collect();
    let mut text = format!("{heading}\n\n{}", targets::table(&figures, true));
    if !left_out.is_empty() {
        text = format!("{text}\nLeft out:\n\n{}", left_out.concat());
    }
    let page = book.join(PAGE);
    let old = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let new = replaced(&old, &text).with_context(|| format!("{} has no lines {BEGIN} and {END}", page.display()))?;
    std::fs::write(&page, new).with_context(|| page.display().to_string())
}

/// The page with this between its marks.
fn replaced(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Better;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = replaced(&page, "new").expect("marks");
        assert_eq!(once, format!("before\n{BEGIN}\n\nnew\n{END}\nafter\n"));
        assert_eq!(replaced(&once, "new").expect("marks"), once);
        assert_eq!(replaced("no marks", "new"), None);
    }

    #[test]
    fn the_book_gets_a_table() {
        let book = tempfile::tempdir().expect("a folder");
        std::fs::write(book.path().join(PAGE), format!("{BEGIN}\n{END}\n")).expect("written");
        let ratio = Figure::ratio("stream, tc / direct", &[1.0, 1.1].into_iter().collect(), Better::More).aims(13, 1.0);
        let part = Part {
            bench: "stream",
            figures: vec![ratio],
            details: serde_json::json!({}),
            left_out: vec!["fast path: none".into()],
        };
        write(book.path(), &[part], "Measured.").expect("written");
        let page = std::fs::read_to_string(book.path().join(PAGE)).expect("a page");
        assert!(
            page.contains("stream, tc / direct") && page.contains("* fast path: none") && page.contains("Measured.")
        );
    }
}
