//! Writes to the flow tables, kept in the overlay.

use lb_common::abi::{Flow, FlowKey, HalfOpen, flow_flags, half_open_flags, tag};
use lb_common::decide::{self, Accepted, Established, FlowTables, NotInserted, Reserved, Work};

use super::overlay::Overlay;
use super::stored::Stored;
use super::trace::Write;

impl<const N: usize, S: Stored<N>> Overlay<'_, N, S> {
    /// Changes the entry with this tag.
    fn change_flow(&mut self, key: FlowKey<N>, tag: u32, change: impl FnOnce(&mut Flow<N>)) {
        if let Some(mut flow) = self.flow_at(&key).filter(|flow| flow.tag == tag) {
            change(&mut flow);
            self.flows.insert(key, Some(flow));
        }
    }

    /// Changes the half-open entry of this backend. `false`: it is another one's, or not there.
    fn change_half_open(&mut self, key: &FlowKey<N>, backend: u32, change: impl FnOnce(&mut HalfOpen<N>)) -> bool {
        let found = self.half_open_at(key).filter(|entry| entry.flow.tag == tag(key) && entry.flow.backend == backend);
        let Some(mut entry) = found else { return false };
        change(&mut entry);
        self.half_open.insert(*key, Some(entry));
        true
    }
}

impl<const N: usize, S: Stored<N>> FlowTables<N> for Overlay<'_, N, S> {
    fn touch(&mut self, entry: FlowKey<N>, tag: u32, seen_s: u32, state: u8, flags: u8) {
        self.change_flow(entry, tag, |flow| *flow = Flow { seen_s, state, flags, ..*flow });
    }

    fn set_numbers(&mut self, entry: FlowKey<N>, tag: u32, next: u32, ack: u32) {
        self.change_flow(entry, tag, |flow| *flow = Flow { next, ack, ..*flow });
    }

    fn set_fin(&mut self, entry: FlowKey<N>, tag: u32, fin: u8) {
        self.change_flow(entry, tag, |flow| flow.fin = fin);
    }

    fn set_opposite_fin(&mut self, entry: FlowKey<N>, tag: u32, fin: u8) {
        self.change_flow(entry, tag, |flow| flow.opposite_fin = fin);
    }

    /// The overlay has room for every entry: whether a table is full shows only when a program writes to it.
    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted> {
        if !replace && self.flow_at(key).is_some() {
            return Err(NotInserted::Exists);
        }
        self.flows.insert(*key, Some(*flow));
        self.wrote(Write::Flow(*key, *flow));
        Ok(())
    }

    fn remove_flow(&mut self, key: &FlowKey<N>) {
        self.flows.insert(*key, None);
        self.wrote(Write::RemoveFlow(*key));
    }

    fn insert_half_open(&mut self, key: &FlowKey<N>, entry: &HalfOpen<N>, replace: bool) -> Result<(), NotInserted> {
        if !replace && self.half_open_at(key).is_some() {
            return Err(NotInserted::Exists);
        }
        self.half_open.insert(*key, Some(*entry));
        self.wrote(Write::HalfOpen(*key, *entry));
        Ok(())
    }

    fn remove_half_open(&mut self, key: &FlowKey<N>) {
        self.half_open.insert(*key, None);
        self.wrote(Write::RemoveHalfOpen(*key));
    }

    fn ask_again(&mut self, key: &FlowKey<N>, backend: u32, segments: u8, now_s: u32) -> bool {
        self.change_half_open(key, backend, |entry| {
            (entry.segments, entry.flow.seen_s) = (segments, now_s);
            entry.flow.flags &= !flow_flags::REPLY_LOST;
        })
    }

    fn mark_answered(&mut self, key: &FlowKey<N>, backend: u32, answers: [u32; 2]) -> bool {
        self.change_half_open(key, backend, |entry| {
            (entry.flags, entry.answers) = (entry.flags | half_open_flags::ANSWERED, answers);
        })
    }

    fn mark_refused(&mut self, key: &FlowKey<N>, backend: u32, refused: u8) {
        self.change_half_open(key, backend, |entry| entry.refused = refused);
    }

    fn mark(&mut self, key: &FlowKey<N>, backend: u32, flags: u8) {
        self.change_half_open(key, backend, |entry| entry.flags |= flags);
    }

    fn fence(&mut self) {}

    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved {
        decide::reserve(self, work, port, now_s)
    }

    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted {
        decide::accept(self, work, now_s)
    }

    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established {
        decide::establish(self, work, link, generation, now_s)
    }

    fn keep_entries(&mut self, work: &mut Work<N>, is_over: bool) {
        decide::keep_entries(self, work, is_over);
    }
}
