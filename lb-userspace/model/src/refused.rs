//! What is refused at one moment: a bounded number of refusals, of which each namespace has an equal share.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use super::Refusal;

/// So many refusals are kept by name.
pub const NAMED_MAX: usize = 256;

/// Refusals, the first ones of each namespace, and how many there are in all. A copy costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    named: Arc<[Refusal]>,
    total: usize,
}

impl Refused {
    /// Keeps all of them up to [`NAMED_MAX`]. Beyond, namespaces with few keep all of theirs, and the others equal shares of the
    /// room that is left. The order stays.
    pub fn of<'a>(refusals: impl IntoIterator<Item = &'a Refusal>) -> Self {
        let all: Vec<&Refusal> = refusals.into_iter().collect();
        let total = all.len();
        Self { named: fair_share(&all, NAMED_MAX, |refusal| refusal.namespace()).copied().cloned().collect(), total }
    }

    /// Both of them; these come first.
    #[must_use]
    pub fn and<'a>(&'a self, more: impl Iterator<Item = &'a Refusal>) -> Self {
        let mut more = more.peekable();
        if more.peek().is_none() {
            return self.clone();
        }
        let both = Self::of(self.named.iter().chain(more));
        Self { total: both.total + self.more(), ..both }
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many are not named.
    pub fn more(&self) -> usize {
        self.total - self.named.len()
    }
}

impl Deref for Refused {
    type Target = [Refusal];

    fn deref(&self) -> &[Refusal] {
        &self.named
    }
}

impl<'a> IntoIterator for &'a Refused {
    type Item = &'a Refusal;
    type IntoIter = std::slice::Iter<'a, Refusal>;

    fn into_iter(self) -> Self::IntoIter {
        self.named.iter()
    }
}

/// At most `room` of them, in their order: namespaces with few keep all of theirs, and the others equal shares of the rest.
pub fn fair_share<'a, T>(
    all: &'a [T],
    room: usize,
    namespace: impl Fn(&'a T) -> &'a str,
) -> impl Iterator<Item = &'a T> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for one in all {
        *counts.entry(namespace(one)).or_default() += 1;
    }
    let mut shares = shares(counts, room);
    all.iter().filter(move |one| {
        let left = shares.get_mut(namespace(one)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    })
}

/// How many of each namespace there is room for.
fn shares(counts: BTreeMap<&str, usize>, mut room: usize) -> BTreeMap<&str, usize> {
    let mut smallest_first: Vec<(&str, usize)> = counts.into_iter().collect();
    smallest_first.sort_by_key(|(_, count)| *count);
    let mut namespaces = smallest_first.len();
    let shares = smallest_first.into_iter().map(|(namespace, count)| {
        // Where there are more namespaces than room, the last ones have the places.
        let share = count.min(room / namespaces);
        room -= share;
        namespaces -= 1;
        (namespace, share)
    });
    shares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_namespace(namespace: &str, count: usize) -> Vec<Refusal> {
        (0..count)
            .map(|number| Refusal::new(format!("Service {namespace}/web-{number:05}"), "bad", "mend it"))
            .collect()
    }

    fn named(refused: &Refused, namespace: &str) -> usize {
        refused.iter().filter(|refusal| refusal.namespace() == namespace).count()
    }

    #[test]
    fn few_are_all_named_in_their_order() {
        let few =
            [of_namespace("b", 2), of_namespace("a", 1), vec![Refusal::new("Node n1", "bad", "mend it")]].concat();
        let refused = Refused::of(&few);
        assert_eq!((&*refused, refused.total(), refused.more()), (&few[..], 4, 0));
        assert_eq!(Refused::of([]), Refused::default());
    }

    #[test]
    fn a_namespace_with_thousands_takes_no_place_of_another() {
        let many = [of_namespace("greedy", 5_000), of_namespace("small", 3), of_namespace("other", 200)].concat();
        let refused = Refused::of(&many);
        assert_eq!((refused.len(), refused.total(), refused.more()), (NAMED_MAX, 5_203, 5_203 - NAMED_MAX));
        assert_eq!([named(&refused, "small"), named(&refused, "other"), named(&refused, "greedy")], [3, 126, 127]);
    }

    #[test]
    fn more_namespaces_than_room_have_one_place_each_at_most() {
        let many: Vec<Refusal> = (0..2 * NAMED_MAX).flat_map(|number| of_namespace(&format!("n{number}"), 2)).collect();
        let refused = Refused::of(&many);
        assert_eq!((refused.len(), refused.total()), (NAMED_MAX, 4 * NAMED_MAX));
        let mut namespaces: Vec<&str> = refused.iter().map(Refusal::namespace).collect();
        namespaces.dedup();
        assert_eq!(namespaces.len(), NAMED_MAX);
    }

    #[test]
    fn more_are_counted_with_those_before() {
        let (greedy, small) = (of_namespace("greedy", 1_000), of_namespace("small", 2));
        let before = Refused::of(&greedy);
        let both = before.and(small.iter());
        assert_eq!((both.len(), both.total(), named(&both, "small")), (NAMED_MAX, 1_002, 2));
        assert_eq!(before.and([].iter()), before);
    }
}
