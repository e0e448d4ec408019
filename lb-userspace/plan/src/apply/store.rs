//! Where tables are kept: the kernel's maps, or memory.

use std::{collections::BTreeSet, ops};

use lb_common::abi::Slot;

use crate::plan::{BackendId, Capacities, Loaded, Op, Part, Range, Stray};
use lb_model::Family;

/// Why one access failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("{0}")]
    Failed(String),
    /// The table has no room; its name.
    #[error("map {0} is full; remove services or endpoints, or raise the map's size")]
    Full(&'static str),
}

/// The tables, as the one writer sees them.
pub trait Store {
    fn capacities(&self) -> Capacities;

    /// Adds what one part holds; nothing for the slots, which are read by range.
    fn load_part(&self, part: Part, loaded: &mut Loaded) -> Result<(), StoreError>;

    /// Adds the backends with these ids that were ever used.
    fn load_backends(&self, family: Family, ids: ops::Range<u32>, loaded: &mut Loaded) -> Result<(), StoreError>;

    /// Everything but the slots.
    fn load(&self) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        Part::ALL.into_iter().try_for_each(|part| self.load_part(part, &mut loaded))?;
        Ok(loaded)
    }

    /// What the slots of each range hold, in the order of the ranges.
    fn slots(&self, ranges: &[Range]) -> Result<Vec<Vec<Slot>>, StoreError>;

    /// Carries one operation out. An operation that failed may be done in part, where readers do not see it; it can be repeated.
    fn apply(&mut self, op: &Op) -> Result<(), StoreError>;

    /// Carries out operations of which none depends on another one; a result for each. One that fails keeps no other from being
    /// done.
    fn apply_all(&mut self, ops: &[&Op]) -> Vec<Result<(), StoreError>> {
        ops.iter().map(|op| self.apply(op)).collect()
    }

    /// Writes which addresses the VIP filter rules out ([`Loaded::vip_filter`]). Each operation that makes an address one of services takes it
    /// out of these first, by itself.
    fn write_vip_filter(&mut self, words: &[u64]);

    /// Takes out an element that nothing of ours can be.
    fn remove_stray(&mut self, stray: &Stray) -> Result<(), StoreError>;

    /// Which of these backends some flow, socket or affinity still refers to. Names one too many rather than one too few.
    fn referred(&mut self, ids: &BTreeSet<BackendId>) -> Result<BTreeSet<BackendId>, StoreError>;
}
