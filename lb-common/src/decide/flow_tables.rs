//! The writes to the flow tables, and what they come to.

use super::closing::is_after;
use super::maps::{FlowRef, NotInserted};
use super::tables::Tables;
use super::work::Work;
use crate::abi::{Flow, FlowKey, HalfOpen, UDP, fin, flow_flags, half_open_flags, tag};
use crate::map;
use crate::numbered::numbered;

/// The writes to the flow tables. `commit` alone calls them.
pub trait FlowTables<const N: usize>: Tables<N> {
    /// Sets time, state and flags of an entry in place, if it still is the one with this tag.
    #[inline(always)]
    fn touch(&mut self, entry: FlowRef<Self, N>, tag: u32, seen_s: u32, state: u8, flags: u8) {
        self.change_flow(entry, tag, |flow| {
            flow.seen_s = seen_s;
            flow.state = state;
            flow.flags = flags;
        });
    }

    /// Sets [`Flow::next`] and [`Flow::ack`] in place, as [`FlowTables::touch`] does. Another CPU may have noted a later segment meanwhile.
    #[inline(always)]
    fn set_numbers(&mut self, entry: FlowRef<Self, N>, tag: u32, next: u32, ack: u32) {
        self.change_flow(entry, tag, |flow| {
            if is_after(next, flow.next) {
                flow.next = next;
            }
            flow.ack = ack;
        });
    }

    /// Sets the numbers, as [`FlowTables::set_numbers`] does, and [`Flow::fin`] in place. A number that is claimed alone gives way to a lower one: the
    /// claim was not the sender's.
    #[inline(always)]
    fn set_end(&mut self, entry: FlowRef<Self, N>, tag: u32, end: &Flow<N>) {
        self.change_flow(entry, tag, |flow| {
            if flow.fin & fin::CLAIMED != 0 || is_after(end.next, flow.next) {
                flow.next = end.next;
            }
            (flow.ack, flow.fin) = (end.ack, end.fin);
        });
    }

    /// Sets [`Flow::fin`] in place, as [`FlowTables::touch`] does.
    #[inline(always)]
    fn set_fin(&mut self, entry: FlowRef<Self, N>, tag: u32, fin: u8) {
        self.change_flow(entry, tag, |flow| flow.fin = fin);
    }

    /// Sets [`Flow::opposite_fin`] in place, as [`FlowTables::touch`] does.
    #[inline(always)]
    fn set_opposite_fin(&mut self, entry: FlowRef<Self, N>, tag: u32, fin: u8) {
        self.change_flow(entry, tag, |flow| flow.opposite_fin = fin);
    }

    /// Changes an entry in place, if it still is the one with this tag.
    #[inline(always)]
    fn change_flow(&mut self, entry: FlowRef<Self, N>, tag: u32, change: impl FnOnce(&mut Flow<N>)) {
        self.with::<map::Flows<N>, _>(entry, |flow| {
            if flow.tag == tag {
                change(flow);
            }
        });
    }

    /// Writes an entry; without `replace` an existing one is left alone and refused.
    #[inline(always)]
    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted> {
        if key.protocol == UDP {
            self.insert::<map::UdpFlows<N>>(key, flow, replace)
        } else {
            self.insert::<map::Flows<N>>(key, flow, replace)
        }
    }

    #[inline(always)]
    fn remove_flow(&mut self, key: &FlowKey<N>) {
        if key.protocol == UDP { self.remove::<map::UdpFlows<N>>(key) } else { self.remove::<map::Flows<N>>(key) }
    }

    /// Writes a half-open entry; without `replace` an existing one is left alone and refused.
    #[inline(always)]
    fn insert_half_open(&mut self, key: &FlowKey<N>, entry: &HalfOpen<N>, replace: bool) -> Result<(), NotInserted> {
        self.insert::<map::HalfOpen<N>>(key, entry, replace)
    }

    #[inline(always)]
    fn remove_half_open(&mut self, key: &FlowKey<N>) {
        self.remove::<map::HalfOpen<N>>(key);
    }

    /// Changes a half-open entry of this backend in place. `false`: it is another backend's, or not there.
    #[inline(always)]
    fn change_half_open(&mut self, key: &FlowKey<N>, backend: u32, change: impl FnOnce(&mut HalfOpen<N>)) -> bool {
        let Some(entry) = self.find::<map::HalfOpen<N>>(key) else { return false };
        // In the kernel it is at worst recycled, which tag and backend show.
        let changed = self.with::<map::HalfOpen<N>, _>(entry, |entry| {
            if entry.flow.tag != tag(key) || entry.flow.backend != backend {
                return false;
            }
            change(entry);
            true
        });
        changed.is_some_and(|is_own| is_own)
    }

    /// Notes in place, in a half-open entry of this backend, that its client has asked again: how often, and when. `false`: it is another
    /// backend's, or not there.
    #[inline(always)]
    fn ask_again(&mut self, key: &FlowKey<N>, backend: u32, segments: u8, now_s: u32) -> bool {
        self.change_half_open(key, backend, |entry| {
            entry.segments = segments;
            entry.flow.seen_s = now_s;
            entry.flow.flags &= !flow_flags::REPLY_LOST;
        })
    }

    /// Marks a half-open entry of this backend as answered in place, by these numbers ([`HalfOpen::answers`]). `false`: it is another
    /// backend's, or not there.
    #[inline(always)]
    fn mark_answered(&mut self, key: &FlowKey<N>, backend: u32, answers: [u32; 2]) -> bool {
        self.change_half_open(key, backend, |entry| {
            entry.answers = answers;
            entry.flags |= half_open_flags::ANSWERED;
        })
    }

    /// Sets [`HalfOpen::refused`] in place in a half-open entry of this backend.
    #[inline(always)]
    fn mark_refused(&mut self, key: &FlowKey<N>, backend: u32, refused: u8) {
        self.change_half_open(key, backend, |entry| entry.refused = refused);
    }

    /// Sets bits of [`HalfOpen::flags`] in place in a half-open entry of this backend.
    #[inline(always)]
    fn mark(&mut self, key: &FlowKey<N>, backend: u32, flags: u8) {
        self.change_half_open(key, backend, |entry| entry.flags |= flags);
    }

    /// Makes what this CPU has written visible to others before it reads on.
    fn fence(&mut self) {}
    /// Reserves the reply tuple of a connection, as [`reserve`](super::reserve) does: the programs call a function of their own.
    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved;
    /// Notes an answer, as [`accept`](super::accept) does: the programs call a function of their own.
    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted;
    /// Establishes a connection, as [`establish`](super::establish) does: the programs call a function of their own.
    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established;
    /// Keeps both entries alike or removes them, as [`keep_entries`](super::keep_entries) does: the programs call a function of their own.
    fn keep_entries(&mut self, work: &mut Work<N>, keeping: Keeping);
}

numbered! {
    /// What became of a reply tuple that was to be reserved.
    Reserved: u32, else Taken {
        /// A live connection holds the tuple.
        Taken = 0;
        Yes = 1;
        /// The table has no room for it.
        Full = 2;
    }
}

numbered! {
    /// What an answer of the backend found.
    Accepted: u32, else Late {
        /// Noted in both entries, for the first time.
        First = 0;
        /// Noted in both entries once more.
        Again = 1;
        /// The original entry is missing, and is to be restored.
        Missing = 2;
        /// The connection is established already.
        Established = 3;
        /// The tuple is another connection's, or the connection has another backend.
        Late = 4;
        /// The table has no room for the claim.
        Full = 5;
    }
}

numbered! {
    /// What became of a handshake that was to become an established connection.
    Established: u32, else Full {
        Yes = 0;
        /// The tuple is another connection's by now.
        Late = 1;
        /// The table has no room for it.
        Full = 2;
    }
}

numbered! {
    /// What becomes of the two entries of an established connection.
    Keeping: u32, else Over {
        /// They are kept alike.
        Alike = 0;
        /// They are, and neither has a link any more.
        OffFastPath = 1;
        /// They are removed.
        Over = 2;
    }
}
