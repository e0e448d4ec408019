//! What does not hold yet. An entry goes with the fault that it names: one that no longer fails makes the test fail.

use lb_tests::scene::Scene;
use lb_tests::topology::Families;

use super::Case;

/// A check that fails on some nodes.
#[derive(Debug)]
pub struct Gap {
    check: &'static str,
    scenes: &'static [Scene],
    rp_filters: &'static [u8],
    families: &'static [Families],
    pub why: &'static str,
}

impl Gap {
    pub fn covers(&self, case: Case, check: &str) -> bool {
        self.check == check
            && self.scenes.contains(&case.scene)
            && self.rp_filters.contains(&case.rp_filter)
            && self.families.contains(&case.families)
    }
}

pub const GAPS: &[Gap] = &[];
