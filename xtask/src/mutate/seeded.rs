//! Judges one seeded mutation: it must build, the kernel must load it, and a test must fail.

use anyhow::{Context, Result};

use super::SEED;
use super::checkout::Checkout;
use super::failures::Failures;
use super::table::Mutation;
use crate::compile::build_programs;
use crate::programs;
use crate::test::{Built, run_on_object, rung_and_filter};
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

/// Who noticed a mutation.
#[derive(Debug, PartialEq, Eq)]
pub struct Noticed {
    pub rung: String,
    pub test: String,
}

/// Applies the mutation to a copy of the checkout, builds and loads the programs, and runs the rungs of the mutation on them until a test
/// fails. `None`: none does. An error: it could not be tried.
pub fn judge(
    workspace: &Workspace,
    toolchain: Toolchain,
    built: &Built,
    mutation: &Mutation,
) -> Result<Option<Noticed>> {
    // The copy is its own: cargo-mutants may edit the other one meanwhile.
    let scratch = workspace.target().join("mutations");
    let checkout = Checkout::restore_to(&workspace.root, scratch.join("programs"))?;
    checkout.mutate(&mutation.edits)?;
    let object = scratch.join("mutated.o");
    // A target folder of its own, kept between mutations: the crates below the programs are built once.
    build_programs(workspace, toolchain, &checkout.root.join("lb-ebpf"), &scratch.join("target"), &object)
        .context("the programs do not build")?;
    programs::load_all(&object)?;
    // Tests that edit the programs compare them with lb-common of this checkout: they judge no mutation of lb-common.
    let source = if mutation.edits.iter().any(|edit| edit.file.starts_with("lb-common/")) {
        &workspace.root
    } else {
        &checkout.root
    };
    for tests in &mutation.tests {
        let (rung, _) = rung_and_filter(tests);
        let mut failures = Failures::default();
        let succeeded = run_on_object(workspace, built, tests, &object, source, SEED, |line| failures.read_line(line))?;
        if let Some(test) = failures.first(rung, succeeded)? {
            return Ok(Some(Noticed { rung: rung.to_owned(), test }));
        }
    }
    Ok(None)
}
