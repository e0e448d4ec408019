//! Maps and sets of a few elements, as sorted lists: a tree takes room for eleven elements where one is held, and there are tens of
//! thousands of them.

use std::borrow::Borrow;

/// A map as a list in the order of its keys. Putting in and taking out move what lies behind: for maps that stay small, or that are
/// filled in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn context<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Most are filled in their order.
        match self.0.last() {
            Some((last, _)) if last.borrow() < key => Err(self.0.len()),
            _ => self.0.binary_search_by(|(held, _)| held.borrow().cmp(key)),
        }
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.context(key).ok().map(|at| &self.0[at].1)
    }

    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.context(key).is_ok()
    }

    /// Returns the value that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.context(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.make_room();
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.context(key).ok().map(|at| self.0.remove(at).1)
    }

    /// Keeps those for which `is_kept` is true.
    pub fn retain(&mut self, is_kept: impl Fn(&K, &V) -> bool) {
        self.0.retain(|(key, value)| is_kept(key, value));
    }

    /// For one more: a quarter more than there is, and exactly as many while they are few.
    fn make_room(&mut self) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(1 + self.0.len() / 4);
        }
    }
}

impl<K, V> SortedMap<K, V> {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + DoubleEndedIterator + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + DoubleEndedIterator + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + DoubleEndedIterator + Clone {
        self.0.iter().map(|(_, value)| value)
    }
}

/// The last of equal keys counts, as in a tree.
impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(elements: I) -> Self {
        let mut list: Vec<(K, V)> = elements.into_iter().collect();
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        // Of two, `dedup_by` removes the later one.
        list.dedup_by(|later, kept| {
            later.0 == kept.0 && {
                std::mem::swap(later, kept);
                true
            }
        });
        list.shrink_to_fit();
        Self(list)
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = std::iter::Map<std::slice::IterMut<'a, (K, V)>, fn(&'a mut (K, V)) -> (&'a K, &'a mut V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }
}

/// A set as a list in its order: see [`SortedMap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedSet<T>(SortedMap<T, ()>);

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self(SortedMap::default())
    }
}

impl<T: Ord> SortedSet<T> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.contains_key(element)
    }

    /// False if it was there already.
    pub fn insert(&mut self, element: T) -> bool {
        self.0.insert(element, ()).is_none()
    }

    /// False if it was not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.remove(element).is_some()
    }
}

impl<T> SortedSet<T> {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator + Clone {
        self.0.keys()
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(elements.into_iter().map(|element| (element, ())).collect())
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (T, ())>, fn(&'a (T, ())) -> &'a T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.0.iter().map(|(element, ())| element)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(lb_seed::property(file!(), 256))]

        #[test]
        fn it_is_a_tree_map(steps in proptest::collection::vec((any::<bool>(), 0_u8..20, any::<u16>()), 0..60)) {
            let (mut list, mut tree) = (SortedMap::default(), BTreeMap::new());
            for (puts, key, value) in steps {
                if puts {
                    prop_assert_eq!(list.insert(key, value), tree.insert(key, value));
                } else {
                    prop_assert_eq!(list.remove(&key), tree.remove(&key));
                }
                prop_assert_eq!(list.get(&key), tree.get(&key));
                prop_assert!(list.iter().eq(tree.iter()));
                prop_assert_eq!(list.len(), tree.len());
            }
        }

        #[test]
        fn it_is_made_of_elements_as_a_tree_is(elements in proptest::collection::vec((0_u8..20, any::<u16>()), 0..40)) {
            let list: SortedMap<u8, u16> = elements.iter().copied().collect();
            let tree: BTreeMap<u8, u16> = elements.iter().copied().collect();
            prop_assert!(list.iter().eq(tree.iter()));
            let (keys, set) = (tree.into_keys(), elements.into_iter().map(|(key, _)| key).collect::<SortedSet<u8>>());
            prop_assert!(set.iter().copied().eq(keys.collect::<BTreeSet<u8>>()));
        }
    }

    #[test]
    fn few_elements_take_no_room_beyond_theirs() {
        let mut map = SortedMap::default();
        for key in 0..4 {
            map.insert(key, ());
            assert_eq!(map.0.capacity(), map.len());
        }
    }
}
