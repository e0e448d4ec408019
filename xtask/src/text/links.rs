//! Links between pages: each leads to a file and to a heading that exist, and the book's summary names every page of it.

use std::collections::BTreeMap;
use std::path::Path;

/// A relative link of a page, and its line.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    target: String,
}

/// The links of a page to other pages, files and headings of the checkout.
fn links(page: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, text) in prose(page) {
        let mut targets: Vec<&str> = text.match_indices("](").map(|(at, _)| &text[at + 2..]).collect();
        targets.extend(text.strip_prefix('[').and_then(|rest| Some(rest.split_once("]: ")?.1)));
        for target in targets {
            let target = target.split([')', ' ']).next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(Link { line, target: target.to_owned() });
            }
        }
    }
    found
}

/// The lines of a page without code, each with its number.
fn prose(page: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if !in_code && !is_fence {
            let without_spans: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
            found.push((index + 1, without_spans));
        }
    }
    found
}

/// The anchors of a page's headings, as mdbook and GitHub make them: a second one of a name ends in `-1`.
fn anchors(page: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let earlier = seen.entry(anchor.clone()).or_default();
        found.push(if *earlier == 0 { anchor } else { format!("{anchor}-{earlier}") });
        *earlier += 1;
    }
    found
}

/// What is wrong with a link from this page; paths are from the root of the checkout.
fn problem(root: &Path, page: &str, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let file = root.join(if path.is_empty() { page.into() } else { folder.join(path) });
    if !file.exists() {
        return Some(format!("no such file: {target}"));
    }
    if anchor.is_empty() || file.extension().is_none_or(|end| end != "md") {
        return None;
    }
    let text = std::fs::read_to_string(&file).ok()?;
    (!anchors(&text).iter().any(|other| other == anchor)).then(|| format!("no such heading: {target}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, assert_none, files, root};
    use super::*;

    #[test]
    fn every_link_leads_somewhere() {
        let mut broken = Vec::new();
        for file in files::read(root()).iter().filter(|file| file.is_page()) {
            for link in links(&file.text) {
                if let Some(problem) = problem(root(), &file.path, &link.target) {
                    broken.push(Finding { file: file.path.clone(), line: link.line, problem });
                }
            }
        }
        assert_none("links lead to a file and a heading", &broken);
    }

    #[test]
    fn the_summary_names_every_page_of_the_book() {
        let summary = std::fs::read_to_string(root().join("docs/src/SUMMARY.md")).expect("the book has a summary");
        let named: Vec<String> = links(&summary).into_iter().map(|link| link.target).collect();
        for entry in std::fs::read_dir(root().join("docs/src")).expect("the book has pages") {
            let name = entry.expect("readable").file_name().into_string().expect("file names are in UTF-8");
            let is_page = files::ends_in(&name, "md") && name != "SUMMARY.md";
            assert!(!is_page || named.contains(&name), "docs/src/SUMMARY.md does not name {name}");
        }
    }

    #[test]
    fn links_are_found_outside_code_only() {
        let page = "[a](b.md#c) and `[x](y)` and [web](https://a.b)\n```\n[n](o)\n```\n[ref]: d.md";
        let found: Vec<(usize, String)> = links(page).into_iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(1, "b.md#c".to_owned()), (5, "d.md".to_owned())]);
    }

    #[test]
    fn anchors_are_made_as_mdbook_makes_them() {
        let page = "# A `b`'s c, d_e\n## The-same\n```\n# no\n```\n## The same";
        assert_eq!(anchors(page), ["a-bs-c-d_e", "the-same", "the-same-1"]);
    }

    #[test]
    fn a_broken_link_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("docs")).expect("a folder");
        std::fs::write(folder.path().join("docs/a.md"), "# One\n").expect("a page");
        std::fs::write(folder.path().join("b.md"), "# Two\n").expect("a page");
        let of = |target| problem(folder.path(), "docs/a.md", target);
        assert_eq!((of("#one"), of("../b.md#two"), of("../b.md"), of("a.md")), (None, None, None, None));
        assert_eq!(of("c.md").as_deref(), Some("no such file: c.md"));
        assert_eq!(of("../b.md#one").as_deref(), Some("no such heading: ../b.md#one"));
    }
}
