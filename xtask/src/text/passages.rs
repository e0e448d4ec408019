//! Passages of text: paragraphs, list items, table cells and headings of a page; the same within comments of a source file.

/// Text of consecutive lines, joined by spaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Passage {
    pub text: String,
    pub is_heading: bool,
    /// Where each line begins in `text`, and its number in the file.
    lines: Vec<(usize, usize)>,
}

impl Passage {
    /// The number of the line that the byte at `offset` comes from.
    pub fn line_at(&self, offset: usize) -> usize {
        let line = self.lines.iter().rev().find(|(begin, _)| *begin <= offset).or(self.lines.first());
        line.map_or(0, |(_, number)| *number)
    }
}

/// The passages of a page in Markdown, without its code blocks.
pub fn of_page(text: &str) -> Vec<Passage> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(index + 1, line.trim());
    }
    reader.finish()
}

/// The passages of the comments that have lines of their own: `//`, `///` and `//!`.
pub fn of_source(text: &str) -> Vec<Passage> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => reader.line(index + 1, comment.trim_start_matches(['/', '!']).trim()),
            None => reader.leave_comment(),
        }
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    done: Vec<Passage>,
    open: Passage,
    in_code: bool,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) {
        if line.starts_with("```") {
            self.end();
            self.in_code = !self.in_code;
        } else if self.in_code {
        } else if let Some(heading) = line.strip_prefix('#') {
            self.end();
            self.add(number, heading.trim_start_matches('#').trim());
            self.open.is_heading = true;
            self.end();
        } else if line.starts_with('|') {
            self.end();
            for cell in cells(line) {
                self.add(number, cell);
                self.end();
            }
        } else if line.is_empty() {
            self.end();
        } else if let Some(item) = list_item(line) {
            self.end();
            self.add(number, item);
        } else {
            self.add(number, line);
        }
    }

    fn add(&mut self, number: usize, text: &str) {
        if !self.open.text.is_empty() {
            self.open.text.push(' ');
        }
        self.open.lines.push((self.open.text.len(), number));
        self.open.text.push_str(text);
    }

    fn end(&mut self) {
        let passage = std::mem::take(&mut self.open);
        if !passage.text.is_empty() {
            self.done.push(passage);
        }
    }

    fn leave_comment(&mut self) {
        self.end();
        self.in_code = false;
    }

    fn finish(mut self) -> Vec<Passage> {
        self.end();
        self.done
    }
}

/// What follows the bullet or the number of a list's item.
fn list_item(line: &str) -> Option<&str> {
    let digits = line.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0);
    let numbered = digits.and_then(|digits| line[digits..].strip_prefix(". "));
    numbered.or_else(|| ["* ", "- ", "+ "].iter().find_map(|bullet| line.strip_prefix(bullet)))
}

/// The cells of a table's row: a `|` after a backslash is part of a cell.
fn cells(row: &str) -> Vec<&str> {
    let is_border = |at: &usize| *at == 0 || row.as_bytes()[at - 1] != b'\\';
    let borders: Vec<usize> = row.match_indices('|').map(|(at, _)| at).filter(is_border).chain([row.len()]).collect();
    borders
        .windows(2)
        .map(|pair| row[(pair[0] + 1).min(pair[1])..pair[1]].trim())
        .filter(|cell| !cell.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: &[Passage]) -> Vec<&str> {
        passages.iter().map(|passage| passage.text.as_str()).collect()
    }

    #[test]
    fn a_page_is_split_at_everything_that_ends_a_paragraph() {
        let page =
            "# Head\nOne\ntwo.\n\n* item\n  goes on\n1. first\n```sh\ncode\n```\n| a | b \\| c |\n|---|---|\nlast";
        let passages = of_page(page);
        assert_eq!(
            texts(&passages),
            ["Head", "One two.", "item goes on", "first", "a", "b \\| c", "---", "---", "last"]
        );
        assert!(passages[0].is_heading && !passages[1].is_heading);
    }

    #[test]
    fn comments_are_joined_and_code_ends_them() {
        let source = "//! File.\n\n/// One\n/// two.\nfn f() {} // trailing\n// ```\n// code\n// ```\n    // three\nlet x = 1;\n// four";
        assert_eq!(texts(&of_source(source)), ["File.", "One two.", "three", "four"]);
    }

    #[test]
    fn a_passage_knows_the_lines_that_it_comes_from() {
        let passages = of_page("\nOne\ntwo.");
        assert_eq!((passages[0].line_at(0), passages[0].line_at(4)), (2, 3));
    }
}
