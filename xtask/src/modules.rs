//! The graph of imports between the files of a crate. In a cycle no file can be read, changed or tested without all the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A module by its path (`decide::commit`; the crate's root is empty), and the text of its file.
type Files = BTreeMap<String, String>;

/// All files of the crate in this folder, without comments and tests.
fn files(package: &Path) -> Result<Files> {
    let mut files = Files::new();
    read(&package.join("src"), "", &mut files)?;
    Ok(files)
}

fn read(folder: &Path, module: &str, files: &mut Files) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).context("a name in UTF-8")?;
        let own = if module.is_empty() { stem.to_owned() } else { format!("{module}::{stem}") };
        if path.is_dir() {
            read(&path, &own, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let is_folder = matches!(stem, "lib" | "main" | "mod");
            let text = fs::read_to_string(&path)?;
            files.insert(if is_folder { module.to_owned() } else { own }, code(&text));
        }
    }
    Ok(())
}

/// The text without comments and without the tests at its end.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules that each file names by `crate::`, `super::`, or by `use` of a module below it.
fn imports(files: &Files) -> BTreeMap<&str, BTreeSet<&str>> {
    let of = |(module, text): (&'_ String, &String)| {
        let mut paths = Vec::new();
        for (at, _) in text.match_indices("::") {
            let start = text[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |before| before + 1);
            let is_use = text[..start].ends_with("use ");
            if (is_use || matches!(&text[start..at], "crate" | "super")) && !text[..start].ends_with("in ") {
                expand(&text[start..], "", &mut paths);
            }
        }
        paths.iter().filter_map(|path| resolve(files, module, path)).filter(|found| found != module).collect()
    };
    files.iter().map(|file| (file.0.as_str(), of(file))).collect()
}

/// The paths that a path with braces stands for; gives what follows it.
fn expand<'a>(text: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    let mut rest = &text[end..];
    if !(path.ends_with("::") && rest.starts_with('{')) {
        paths.push(path);
        // `as NAME`
        return rest.find([',', '}', ';', '\n']).map_or("", |at| &rest[at..]);
    }
    while let Some(next) = rest.strip_prefix(['{', ',']) {
        rest = expand(next.trim_start(), &path, paths).trim_start();
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// The file that a path leads to, seen from a module: the longest part of it that is one.
fn resolve<'a>(files: &'a Files, module: &str, path: &str) -> Option<&'a str> {
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    let below = |name: &str| if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") };
    match parts.peek().copied()? {
        "crate" => {
            at.clear();
            parts.next();
        }
        "super" => while parts.next_if_eq(&"super").is_some() && at.pop().is_some() {},
        name if files.contains_key(&below(name)) => {}
        _ => return None,
    }
    for part in parts {
        at.push(part);
        if !files.contains_key(&at.join("::")) {
            at.pop();
            break;
        }
    }
    files.get_key_value(&at.join("::")).map(|(module, _)| module.as_str())
}

/// A cycle of imports: the modules in their order, the first one once more at the end.
fn cycle(files: &Files) -> Option<String> {
    let graph = imports(files);
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| walk(&graph, module, &mut Vec::new(), &mut done)).map(|cycle| cycle.join(" -> "))
}

fn walk<'a>(
    graph: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    module: &'a str,
    way: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(at) = way.iter().position(|before| *before == module) {
        return Some(way[at..].iter().copied().chain([module]).collect());
    }
    if done.contains(module) {
        return None;
    }
    way.push(module);
    let found = graph[module].iter().find_map(|next| walk(graph, next, way, done));
    way.pop();
    done.insert(module);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Files {
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).expect("readable")
    }

    #[test]
    fn no_file_of_lb_common_imports_itself_by_way_of_others() {
        let files = package("lb-common");
        assert!(imports(&files)["decide::decision"].contains("decide::open"), "the imports are read");
        assert_eq!(cycle(&files), None);
    }

    #[test]
    fn no_file_of_lb_ebpf_imports_itself_by_way_of_others() {
        let files = package("lb-ebpf");
        assert!(imports(&files)["tc::transport"].contains("tc::sctp"), "the imports are read");
        assert_eq!(cycle(&files), None);
    }

    #[test]
    fn a_cycle_is_found_and_named() {
        let file = |module: &str, text: &str| (module.to_owned(), code(text));
        let mut files = Files::from([
            file("", "pub mod a;"),
            file("a", "mod b;\nmod c;\npub use b::{self as other, B};"),
            file("a::b", "use super::c::{C, Other as It};\n// use crate::a::C;"),
            file("a::c", "pub(in crate::a) struct C;\n#[cfg(test)]\nmod tests {\n    use super::super::b::B;\n}"),
        ]);
        assert_eq!(cycle(&files), None);
        files.insert("a::c".to_owned(), "fn c() -> crate::a::b::B {}".to_owned());
        assert_eq!(cycle(&files).as_deref(), Some("a::b -> a::c -> a::b"));
        files.insert("a::c".to_owned(), "use super::B;".to_owned());
        assert_eq!(cycle(&files).as_deref(), Some("a -> a::b -> a::c -> a"));
    }

    /// The flow tables have one writer.
    #[test]
    fn flow_tables_are_written_by_commit_alone() {
        let files = package("lb-common");
        let (_, writes) = files["decide::tables"].split_once("pub trait FlowTables").expect("the trait of the writes");
        let names: Vec<&str> = writes.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
        assert!(names.contains(&"insert_flow") && names.contains(&"mark_answered"), "{names:?}");
        for (module, text) in files.iter().filter(|(module, _)| !module.starts_with("decide::commit")) {
            // Steps ask for functions of the programs that call `commit`.
            let through = ["reserve", "accept", "establish", "keep_entries", "from_number"];
            for name in names.iter().filter(|name| !through.contains(name)) {
                assert!(!text.contains(&format!(".{name}(")), "{module} writes flow tables: {name}");
            }
        }
    }
}
