//! The maps as the decision reaches them: by their types ([`crate::map`]), whatever holds them.

use crate::map::{self, Map, Record};

/// The maps: those of the kernel, or memory.
pub trait Maps: Sized {
    /// Names an element that was found.
    type Element<K: Record, V: Record>: Copy;

    /// `None`: there is no such element.
    fn find<M: Map>(&mut self, key: &M::Key) -> Option<ElementOf<Self, M>>;
    /// Reads an element, or changes it in place. `None`: it is gone. In the kernel it never is, but may have become another key's.
    fn with<M: Map, R>(&mut self, element: ElementOf<Self, M>, with: impl FnOnce(&mut M::Value) -> R) -> Option<R>;
    /// Writes an element; without `replace` an existing one is left alone and refused.
    fn insert<M: Map>(&mut self, key: &M::Key, value: &M::Value, replace: bool) -> Result<(), NotInserted>;
    fn remove<M: Map>(&mut self, key: &M::Key);

    /// A copy of an element, whatever others write meanwhile.
    #[inline(always)]
    fn get<M: Map>(&mut self, key: &M::Key) -> Option<M::Value> {
        let element = self.find::<M>(key)?;
        self.with::<M, _>(element, |value| *value)
    }

    /// Adds to a counter (wrapping), with what others add at the same time.
    #[inline(always)]
    fn add(counter: &mut u32, change: i32) {
        *counter = counter.wrapping_add_signed(change);
    }
}

/// What names an element of the map `M`.
pub type ElementOf<T, M> = <T as Maps>::Element<<M as Map>::Key, <M as Map>::Value>;
/// Names a flow entry that was found, for [`super::FlowTables::touch`].
pub type FlowRef<T, const N: usize> = ElementOf<T, map::Flows<N>>;

/// Why [`Maps::insert`] wrote nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInserted {
    Exists,
    Full,
}
