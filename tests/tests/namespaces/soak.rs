//! A short soak: nothing is left of thousands of changes. `cargo xtask soak` makes a million. Needs root.

use anyhow::Result;
use lb_tests::churn::soak;

/// Changes of this form.
const CHANGES: u64 = 5_000;

#[test]
fn nothing_is_left_of_thousands_of_changes() -> Result<()> {
    let soaked = soak(CHANGES, 7, |_| {})?;
    let (churned, last) = (&soaked.churned, soaked.samples.last());
    println!("{} changes in {:.1} s; {last:?}", soaked.changes, soaked.took.as_secs_f64());
    assert!(soaked.changes >= CHANGES);
    assert_eq!((churned.seen.stale, churned.seen.inherited), (0, 0), "{:#?}", churned.seen.violations);
    assert_eq!((churned.drains.draining, churned.drains.put_off), (0, 0));
    assert_eq!(churned.in_use[0], churned.in_use[1], "ids were leaked");
    Ok(())
}
