//! Source files that are too long: a file holds one idea.

use super::{Finding, assert_none, files, root};

const MOST_LINES: usize = 400;

#[test]
fn no_source_file_is_too_long() {
    let problem = |file: files::File| {
        let lines = file.text.lines().count();
        let problem = format!("{lines} lines; split it by concern");
        (!file.is_page() && lines > MOST_LINES).then_some(Finding { file: file.path, line: MOST_LINES + 1, problem })
    };
    let long: Vec<Finding> = files::read(root()).into_iter().filter_map(problem).collect();
    assert_none("source files of more than 400 lines", &long);
}
