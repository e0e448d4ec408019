//! What guests run: test binaries of their own, and modules of the host's.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::figures;
use crate::test::{FORM, Module, SEED, modules, tests_of_module};
use crate::workspace::Workspace;

/// Test binaries with this prefix need what only a guest has: they are none of the host's rungs.
pub const PREFIX: &str = "guest_";

/// The variable with the further modules of a subject; see `ballast-guest`.
const MODULES: &str = "BALLAST_GUEST_MODULES";

/// A test binary of the guests' own, or a module of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    pub name: &'a str,
    /// Only tests whose name contains this.
    filter: Option<&'static str>,
    /// Variables of the environment.
    variables: &'static [&'static str],
    /// Only on this kernel.
    kernel: Option<&'static str>,
    /// Modules of the kernel that only this one needs: they are loaded when it begins.
    pub modules: &'static [&'static str],
}

impl<'a> Subject<'a> {
    /// All tests of this name.
    pub const fn all(name: &'a str) -> Self {
        Self { name, filter: None, variables: &[], kernel: None, modules: &[] }
    }

    const fn on(self, kernel: &'static str) -> Self {
        Self { kernel: Some(kernel), ..self }
    }
}

/// The rung `kernels` in its short form. Each kernel verifies every program once: for `guest_programs`, or for the agent of `guest_kernels`.
pub const SHORT: [Subject<'static>; 3] = [
    Subject::all(figures::TEST).on("6.12"),
    Subject { filter: Some("ipv6_packets_become"), variables: &["BALLAST_PACKET_CASES=8"], ..Subject::all("packet") }
        .on("6.12"),
    Subject::all("guest_kernels").on("6.1"),
];

/// IPVS, and NAT as kube-proxy uses it beside IPVS.
const IPVS: Subject<'static> = Subject {
    modules: &["nf_conntrack_netlink", "nft_chain_nat", "nft_masq", "nft_ct", "ip_vs", "ip_vs_rr"],
    ..Subject::all("guest_ipvs")
};

/// The same in its long form.
pub const LONG: [Subject<'static>; 10] = [
    Subject::all(figures::TEST),
    Subject::all("guest_kernels"),
    Subject::all("guest_sctp"),
    Subject::all("guest_clock"),
    Subject { variables: &["BALLAST_PACKET_CASES=60"], ..Subject::all("packet") },
    Subject::all("cluster_ip"),
    Subject::all("drain"),
    Subject::all("socket"),
    Subject::all("agent_life"),
    // The last one: its modules stay loaded.
    IPVS,
];

/// A test that does not run in guests.
#[derive(Debug)]
struct LeftOut {
    test: &'static str,
    /// On these kernels; `None`: on all.
    kernels: Option<&'static [&'static str]>,
}

/// `docs/src/kernels.md` says why.
const LEFT_OUT: [LeftOut; 1] =
    [LeftOut { test: "cluster_ip::tcx_and_clsact_serve_alike", kernels: Some(&["5.10", "6.1"]) }];

/// A subject whose binary is known.
#[derive(Clone, Debug)]
pub struct Located<'a> {
    subject: Subject<'a>,
    /// `None`: the whole binary of this name.
    module: Option<Module>,
}

/// Finds the subject's binary.
pub fn locate<'a>(workspace: &Workspace, subject: Subject<'a>) -> Result<Located<'a>> {
    if subject.name.starts_with(PREFIX) {
        return Ok(Located { subject, module: None });
    }
    let Some(module) = modules(&workspace.root)?.into_iter().find(|module| module.name == subject.name) else {
        bail!("no test binary of guests and no module of tests is called {:?}", subject.name)
    };
    Ok(Located { subject, module: Some(module) })
}

impl Located<'_> {
    pub fn binary(&self) -> &str {
        self.module.as_ref().map_or(self.subject.name, |module| module.binary)
    }

    pub fn modules(&self) -> &'static [&'static str] {
        self.subject.modules
    }

    pub fn name(&self) -> &str {
        self.subject.name
    }

    pub fn runs_on(&self, kernel: &str) -> bool {
        self.subject.kernel.is_none_or(|only| only == kernel)
    }

    /// What a guest with this kernel runs, as its first process reads it.
    pub fn line(&self, tests: &Tests, kernel: &str, modules: &[String]) -> Result<String> {
        let mut words = vec![self.subject.name.to_owned()];
        if !modules.is_empty() {
            words.push(format!("{MODULES}={}", modules.join(",")));
        }
        let of_the_run =
            [FORM, SEED].into_iter().filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
        words.extend(of_the_run);
        words.extend(self.subject.variables.iter().map(|&variable| variable.to_owned()));
        words.extend([format!("/tests/{}", self.binary()), "--test-threads=1".to_owned()]);
        if let Some(module) = &self.module {
            words.push("--exact".to_owned());
            let names = tests_of_module(tests.path(module.binary)?, &module.name, self.subject.filter)?;
            words.extend(names.into_iter().filter(|name| !is_left_out(name, kernel)));
        }
        Ok(words.join(" "))
    }
}

fn is_left_out(test: &str, kernel: &str) -> bool {
    let here = |one: &LeftOut| one.test == test && one.kernels.is_none_or(|kernels| kernels.contains(&kernel));
    LEFT_OUT.iter().any(here)
}

/// The binaries of these subjects, each once.
pub fn binaries<'a>(subjects: &'a [Located<'_>]) -> BTreeSet<&'a str> {
    subjects.iter().map(Located::binary).collect()
}

/// Where cargo put each binary.
#[derive(Clone, Debug)]
pub struct Tests(pub Vec<(String, PathBuf)>);

impl Tests {
    fn path(&self, binary: &str) -> Result<&PathBuf> {
        let found = self.0.iter().find(|(name, _)| name == binary);
        found.map(|(_, path)| path).with_context(|| format!("{binary} was not built"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn workspace() -> Workspace {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout").to_owned();
        Workspace { tools: root.clone(), cache: root.clone(), root }
    }

    #[test]
    fn every_subject_is_there_and_every_binary_of_guests_runs() {
        let workspace = workspace();
        for subject in SHORT.into_iter().chain(LONG) {
            let located = locate(&workspace, subject).expect("is there");
            let file = workspace.root.join("tests/tests").join(located.binary());
            assert!(file.join("main.rs").exists() || file.with_extension("rs").exists(), "{subject:?}");
        }
        assert!(locate(&workspace, Subject::all("nothing")).is_err());
        for entry in fs::read_dir(workspace.root.join("tests/tests")).expect("listed") {
            let name = entry.expect("read").path().file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(
                !name.starts_with(PREFIX) || LONG.iter().any(|subject| subject.name == name),
                "{name} runs nowhere"
            );
        }
    }

    #[test]
    fn the_page_names_each_test_that_is_left_out() {
        let page = fs::read_to_string(workspace().root.join("docs/src/kernels.md")).expect("the page");
        for LeftOut { test, .. } in LEFT_OUT {
            assert!(page.contains(&format!("`{test}`")), "docs/src/kernels.md does not say why {test} is left out");
        }
    }

    #[test]
    fn a_test_is_left_out_where_the_kernel_lacks_what_it_needs() {
        let test = "cluster_ip::tcx_and_clsact_serve_alike";
        assert!(is_left_out(test, "6.1") && !is_left_out(test, "6.12") && !is_left_out("cluster_ip::other", "6.1"));
    }

    #[test]
    fn a_line_names_the_binary_and_how_it_runs() {
        let located = locate(&workspace(), SHORT[0]).expect("is there");
        let line = located.line(&Tests(vec![]), "6.12", &[]).expect("needs no list of tests");
        let of_the_run = |line: &str| {
            line.starts_with("guest_programs ") && line.ends_with(" /tests/guest_programs --test-threads=1")
        };
        assert!(of_the_run(&line), "{line}");
        let modules = ["a.ko".to_owned(), "b.ko.xz".to_owned()];
        let line = located.line(&Tests(vec![]), "6.12", &modules).expect("needs no list of tests");
        assert!(of_the_run(&line) && line.contains(" BALLAST_GUEST_MODULES=a.ko,b.ko.xz "), "{line}");
    }
}
