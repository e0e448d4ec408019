//! The graph of imports between the files of a crate. In a cycle no file can be read, changed or tested without all the others.
//!
//! The folders of `lb-userspace` have levels, which ARCHITECTURE.md lists: a folder imports from the levels below its own.

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
    let tests: BTreeSet<String> = files.iter().flat_map(|(module, text)| test_modules(module, text)).collect();
    let is_test = |module: &str| {
        let below_tests = |test: &String| module == test || module.starts_with(&format!("{test}::"));
        // Files that are declared by their path.
        module.ends_with("_tests") || tests.iter().any(below_tests)
    };
    files.retain(|module, _| !is_test(module));
    Ok(files)
}

/// The modules that a file declares for tests alone.
fn test_modules(module: &str, text: &str) -> Vec<String> {
    let declared = text.split("#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split_once(';'));
    let names = declared.map(|(name, _)| name).filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
    names.map(|name| if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }).collect()
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
    let tests = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
    let end = tests
        .filter(|at| text[*at..].split(['{', ';']).next().is_some_and(|head| text[at + head.len()..].starts_with('{')));
    let end = end.min().unwrap_or(text.len());
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

/// The level of each folder, as a page lists them: below the heading, one numbered line for each level, the lowest first.
fn levels(page: &str) -> BTreeMap<&str, usize> {
    let list = page.split_once("\n### Import order\n").map_or("", |(_, list)| list);
    let list = list.split("\n#").next().unwrap_or_default();
    let lines = list.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let folders = lines.enumerate().flat_map(|(level, line)| named(line).map(move |folder| (folder, level)));
    folders.collect()
}

/// The names between backquotes.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// What contradicts the levels: folders without one, names without a folder, and imports from the own level or one above. The
/// crate's root and `main.rs` may import everything.
fn against_levels(files: &Files, levels: &BTreeMap<&str, usize>) -> Vec<String> {
    let folder = |module: &'_ str| module.split("::").next().unwrap_or_default().to_owned();
    let folders: BTreeSet<String> = files.keys().map(|module| folder(module)).filter(|name| !name.is_empty()).collect();
    let mut found: Vec<String> = Vec::new();
    found.extend(
        folders.iter().filter(|name| !levels.contains_key(name.as_str())).map(|name| format!("{name} has no level")),
    );
    found.extend(levels.keys().filter(|name| !folders.contains(**name)).map(|name| format!("there is no {name}")));
    for (module, imported) in imports(files).into_iter().filter(|(module, _)| !module.is_empty()) {
        let own = folder(module);
        let others: BTreeSet<String> =
            imported.into_iter().map(folder).filter(|other| *other != own && !other.is_empty()).collect();
        let is_above = |other: &&String| levels.get(other.as_str()) >= levels.get(own.as_str());
        found.extend(
            others.iter().filter(is_above).map(|other| format!("{module} imports {other}, which is not below {own}")),
        );
    }
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

    #[test]
    fn folders_of_lb_userspace_import_only_from_levels_below() {
        let page =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md")).expect("readable");
        let (files, levels) = (package("lb-userspace"), levels(&page));
        assert!(imports(&files)["plan::planner"].contains("model"), "the imports are read");
        assert_eq!(against_levels(&files, &levels), Vec::<String>::new(), "ARCHITECTURE.md, Import order");
    }

    #[test]
    fn an_import_from_the_own_level_or_one_above_is_found_and_named() {
        let page = "# A\n### Import order\n\n1. `a`, `b`\n2. `c`: comment\n3. `e`, `f`\n\n## Next\n1. `d`\n";
        let levels = levels(page);
        assert_eq!(levels, BTreeMap::from([("a", 0), ("b", 0), ("c", 1), ("e", 2), ("f", 2)]));
        let file = |module: &str, text: &str| (module.to_owned(), code(text));
        let files = Files::from([
            file("", "pub mod a;\nuse c::C;"),
            file("a", "use crate::b::B;"),
            file("a::deep", "use crate::{a::A, c::C};"),
            file("b", "#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}"),
            file("c", "use crate::a::A;\n#[cfg(test)]\nmod c_tests;\nuse crate::e::E;"),
            file("d", ""),
            file("e", ""),
        ]);
        assert_eq!(test_modules("c", &files["c"]), ["c::c_tests"]);
        let expected = [
            "d has no level",
            "there is no f",
            "a imports b, which is not below a",
            "a::deep imports c, which is not below a",
            "c imports e, which is not below c",
        ];
        assert_eq!(against_levels(&files, &levels), expected);
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
