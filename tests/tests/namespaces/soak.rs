//! A short soak: nothing is left of thousands of changes. `cargo xtask soak` makes a million. Needs root.

use anyhow::Result;
use lb_tests::churn::soak;

/// Changes, in the short form and in the long one.
const CHANGES: [u64; 2] = [2_000, 50_000];
/// Resident memory at the end, in percent of that at the begin: the allocator takes and gives back some.
const GROWTH_MAX: u64 = 110;

#[test]
fn nothing_is_left_of_thousands_of_changes() -> Result<()> {
    let [short, long] = CHANGES;
    let changes = lb_seed::short_or_long(short, long);
    let soaked = soak(changes, lb_seed::of_run(), |_| {})?;
    let churned = &soaked.churned;
    assert!(soaked.changes >= changes);
    assert_eq!((churned.seen.stale, churned.seen.inherited), (0, 0), "{:#?}", churned.seen.violations);
    assert_eq!((churned.drains.draining, churned.drains.put_off), (0, 0));
    assert_eq!(churned.in_use[0], churned.in_use[1], "ids were leaked");
    let [before, after] = soaked.slots();
    assert_eq!(before, after, "slots were leaked");
    let growth = soaked.growth_percent();
    assert!(growth <= GROWTH_MAX, "memory grew to {growth} %: {:#?}", soaked.samples);
    Ok(())
}
