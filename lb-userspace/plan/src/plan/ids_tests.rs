//! Pools never hand out what is in use, and lose nothing.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn ids_start_at_1_end_at_the_bound_and_come_back() {
    let mut pool = IdPool::new(4);
    assert_eq!(pool.free().collect::<Vec<_>>(), [1, 2, 3]);
    pool.take(3);
    pool.take(1);
    assert_eq!(pool.free().collect::<Vec<_>>(), [2]);
    pool.take(2);
    assert_eq!(pool.free().next(), None);
    pool.give_back(1);
    assert_eq!(pool.free().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_range_that_is_not_free_is_not_taken() {
    let mut pool = SlotPool::new(10);
    assert!(pool.take(Range { base: 2, count: 3 }));
    assert!(!pool.take(Range { base: 4, count: 2 }));
    assert!(!pool.take(Range { base: 8, count: 3 }));
    assert!(!pool.take(Range { base: u32::MAX, count: 3 }));
    assert_eq!(pool.find(5, &[]), Some(Range { base: 5, count: 5 }));
    assert_eq!(pool.find(6, &[]), None);
}

#[test]
fn what_is_promised_is_not_found_again_and_the_smallest_run_is_used() {
    let mut pool = SlotPool::new(20);
    assert!(pool.take(Range { base: 4, count: 6 }));
    let small = Range { base: 0, count: 3 };
    assert_eq!(pool.find(3, &[]), Some(small));
    let large = Range { base: 10, count: 3 };
    assert_eq!(pool.find(3, &[small]), Some(large));
    assert_eq!(pool.find(3, &[small, large]), Some(Range { base: 13, count: 3 }));
    assert_eq!(pool.find(1, &[small, large]), Some(Range { base: 3, count: 1 }));
    assert_eq!(pool.find(8, &[large]), None);
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 256))]

    #[test]
    fn slots_are_never_given_twice_and_never_lost(sizes in prop::collection::vec((1u32..20, any::<bool>()), 1..80)) {
        let mut pool = SlotPool::new(100);
        let mut taken: Vec<Range> = Vec::new();
        for (size, give_back) in sizes {
            if give_back && !taken.is_empty() {
                pool.give_back(taken.remove(size as usize % taken.len()));
            } else if let Some(range) = pool.find(size, &[]) {
                prop_assert!(pool.take(range));
                taken.push(range);
            }
            let used: Vec<u32> = taken.iter().flat_map(|r| r.base..r.base + r.count).collect();
            prop_assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), used.len());
            prop_assert!(used.iter().all(|slot| *slot < 100));
        }
        for range in taken {
            pool.give_back(range);
        }
        prop_assert_eq!(pool.find(100, &[]), Some(Range { base: 0, count: 100 }));
    }
}
