//! Rings of files of a crate that import each other: none of them can be read, changed or tested without all the others. The compiler sees to
//! it that crates have none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A module by its path (`decide::commit`; the crate's root is empty), and the text of its file.
type Files = BTreeMap<String, String>;
/// The path that stands behind a name which a module gives on.
type Exports = BTreeMap<(String, String), String>;

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
    let declared = of_tests(text).filter_map(|(_, rest)| rest.split_once(';'));
    let names = declared.map(|(name, _)| name).filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
    names.map(|name| if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }).collect()
}

/// Each module that is there for tests alone: where it begins, and the text from its name on.
fn of_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("#[cfg(test)]\n").filter_map(|(at, attribute)| {
        let (visibility, rest) = text[at + attribute.len()..].split_once("mod ")?;
        matches!(visibility, "" | "pub " | "pub(super) " | "pub(crate) ").then_some((at, rest))
    })
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
    let mut tests =
        of_tests(text).filter(|(_, rest)| rest.find(['{', ';']).is_some_and(|end| rest[end..].starts_with('{')));
    let end = tests.next().map_or(text.len(), |(at, _)| at);
    text[..end].lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// What a file takes from others (`use`, or a path in its text), and what it gives on by `pub use`.
fn paths(files: &Files, module: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let (mut taken, mut given) = (Vec::new(), Vec::new());
    for (at, _) in text.match_indices("::") {
        let start = text[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |before| before + 1);
        let (before, first) = (&text[..start], &text[start..at]);
        if first.is_empty() || before.ends_with("::") || before.ends_with("in ") {
            continue;
        }
        let is_module = matches!(first, "crate" | "super") || files.contains_key(&below(module, first));
        if let Some(before) = before.strip_suffix("use ") {
            let line = before.rsplit('\n').next().unwrap_or_default();
            expand(&text[start..], "", if line.trim_start().starts_with("pub") { &mut given } else { &mut taken });
        } else if is_module {
            expand(&text[start..], "", &mut taken);
        }
    }
    (taken, given)
}

/// The files that each file imports from. What a file only gives on is the file's that has it.
fn imports(files: &Files) -> BTreeMap<&str, BTreeSet<&str>> {
    let paths: BTreeMap<&str, _> =
        files.iter().map(|(module, text)| (module.as_str(), paths(files, module, text))).collect();
    let given = |(module, (_, given)): (&&'_ str, &(Vec<String>, Vec<String>))| -> Vec<((String, String), String)> {
        let name = |path: &String| path.rsplit("::").next().unwrap_or_default().to_owned();
        given.iter().map(|path| (((*module).to_owned(), name(path)), path.clone())).collect()
    };
    let given: Exports = paths.iter().flat_map(given).collect();
    let of = |module: &'_ str, taken: &[String]| {
        let found = taken.iter().filter_map(|path| resolve(files, &given, module, path));
        found.filter(|found| *found != module).collect()
    };
    paths.iter().map(|(module, (taken, _))| (*module, of(module, taken))).collect()
}

fn below(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
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
        let next = next.trim_start();
        // After the last comma.
        rest = if next.starts_with('}') { next } else { expand(next, &path, paths).trim_start() };
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// The file that a path leads to, seen from a module. It is the longest part that is a file, or what that file gives on by `pub use`.
fn resolve<'a>(files: &'a Files, given: &Exports, module: &str, path: &str) -> Option<&'a str> {
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    match parts.peek().copied()? {
        "crate" => {
            at.clear();
            parts.next();
        }
        "super" => while parts.next_if_eq(&"super").is_some() && at.pop().is_some() {},
        name if files.contains_key(&below(module, name)) => {}
        _ => return None,
    }
    for part in parts {
        let here = at.join("::");
        if files.contains_key(&below(&here, part)) {
            at.push(part);
            continue;
        }
        if let Some(from) = given.get(&(here.clone(), part.to_owned())) {
            return resolve(files, given, &here, from);
        }
        break;
    }
    files.get_key_value(&at.join("::")).map(|(module, _)| module.as_str())
}

/// The rings of more than `most` files, each with what its files import from each other.
fn rings(files: &Files, most: usize) -> Vec<String> {
    let graph = imports(files);
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (*module, reached(&graph, module))).collect();
    let ring = |module: &&str| -> BTreeSet<&str> {
        reached[module].iter().copied().filter(|other| reached[other].contains(module)).collect()
    };
    let rings: BTreeSet<BTreeSet<&str>> = graph.keys().map(ring).filter(|ring| ring.len() > most).collect();
    let shown = |ring: BTreeSet<&str>| {
        let file = |file: &&str| format!("{file} -> {:?}", graph[file].intersection(&ring).collect::<Vec<_>>());
        ring.iter().map(file).collect::<Vec<_>>().join("\n")
    };
    rings.into_iter().map(shown).collect()
}

/// All files that a file needs: those that it imports from, and those that these need.
fn reached<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, module: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut ahead) = (BTreeSet::new(), vec![module]);
    while let Some(module) = ahead.pop() {
        ahead.extend(graph[module].iter().copied().filter(|next| reached.insert(*next)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Files {
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).expect("readable")
    }

    #[test]
    fn files_import_each_other_in_no_ring_or_in_a_short_one() {
        for (name, most) in [
            ("lb-common", 1),
            ("lb-ebpf", 1),
            ("lb-userspace", 1),
            ("lb-userspace/tables", 1),
            ("lb-userspace/netlink", 1),
            ("lb-userspace/model", 1),
            ("lb-userspace/objects", 1),
            ("lb-userspace/plan", 1),
            ("lb-userspace/source", 1),
            ("lb-userspace/takeover", 3),
            ("lb-userspace/datapath", 1),
        ] {
            let found = rings(&package(name), most);
            assert!(found.is_empty(), "{name}: move what these share to a file below them:\n{}", found.join("\n\n"));
        }
    }

    #[test]
    fn imports_are_read() {
        assert!(imports(&package("lb-common"))["decide::decision"].contains("decide::open"));
        assert!(imports(&package("lb-ebpf"))["tc::transport"].contains("tc::sctp"));
        assert!(imports(&package("lb-userspace/plan"))["plan::planner"].contains("plan::desired"), "through `pub use`");
    }

    #[test]
    fn a_ring_is_found_and_named() {
        let file = |module: &str, text: &str| (module.to_owned(), code(text));
        let mut files = Files::from([
            file("", "pub mod a;"),
            file("a", "mod b;\nmod c;\npub use b::{self as other, B};"),
            file("a::b", "use super::c::{C, Other as It};\n// use crate::a::C;"),
            file(
                "a::c",
                "pub(in crate::a) struct C;\n#[cfg(test)]\npub(super) mod tests {\n    use crate::a::b::B;\n}",
            ),
        ]);
        assert_eq!(rings(&files, 1), Vec::<String>::new());
        let ring = ["a::b -> [\"a::c\"]\na::c -> [\"a::b\"]"];
        files.insert("a::c".to_owned(), "fn c() -> crate::a::b::B {}".to_owned());
        assert_eq!(rings(&files, 1), ring);
        files.insert("a::c".to_owned(), "use super::B;".to_owned());
        assert_eq!(rings(&files, 1), ring, "the parent gives it on");
        assert_eq!(rings(&files, 2), Vec::<String>::new());
        files.insert("a::c".to_owned(), "#[cfg(test)]\nmod c_tests;".to_owned());
        assert_eq!(test_modules("a::c", &files["a::c"]), ["a::c::c_tests"]);
        files.insert("a".to_owned(), "mod b;\nfn a() { b::b() }".to_owned());
        files.insert("a::c".to_owned(), "use super::a;".to_owned());
        assert_eq!(rings(&files, 2).len(), 1, "by a path without `use`, and by three files");
    }

    /// The flow tables have one writer.
    #[test]
    fn flow_tables_are_written_by_commit_alone() {
        let files = package("lb-common");
        let (_, writes) =
            files["decide::flow_tables"].split_once("pub trait FlowTables").expect("the trait of the writes");
        let names: Vec<&str> = writes.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
        assert!(names.contains(&"insert_flow") && names.contains(&"mark_answered"), "{names:?}");
        let is_writer = |module: &str| module.starts_with("decide::commit") || module == "decide::flow_tables";
        for (module, text) in files.iter().filter(|(module, _)| !is_writer(module)) {
            for table in ["Flows", "UdpFlows", "HalfOpen"] {
                let writes = ["insert", "remove"].map(|write| format!(".{write}::<map::{table}<N>>"));
                assert!(writes.iter().all(|write| !text.contains(write)), "{module} writes flow tables: {table}");
                // In place, too: the look-ups of `Tables` alone reach an entry so, and only read it.
                let in_place = format!(".with::<map::{table}<N>");
                assert!(
                    module == "decide::tables" || !text.contains(&in_place),
                    "{module} writes flow tables: {table}"
                );
            }
            // Steps ask for functions of the programs that call `commit`.
            let through = ["reserve", "accept", "establish", "keep_entries", "from_number"];
            for name in names.iter().filter(|name| !through.contains(name)) {
                assert!(!text.contains(&format!(".{name}(")), "{module} writes flow tables: {name}");
            }
        }
    }
}
