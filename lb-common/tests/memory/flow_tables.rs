//! The writes of `commit`, over hash maps.

use lb_common::abi::{Flow, FlowKey, HalfOpen, flow_flags, half_open_flags, tag};
use lb_common::decide::{
    Accepted, Established, FlowTables, NotInserted, Reserved, Work, accept, establish, keep_entries, reserve,
};

use super::Memory;

impl<const N: usize> FlowTables<N> for Memory<N> {
    fn touch(&mut self, entry: FlowKey<N>, tag: u32, seen_s: u32, state: u8, flags: u8) {
        if let Some(flow) = self.flows.get_mut(&entry).filter(|flow| flow.tag == tag) {
            *flow = Flow { seen_s, state, flags, ..*flow };
        }
    }

    fn set_numbers(&mut self, entry: FlowKey<N>, tag: u32, next: u32, ack: u32) {
        if let Some(flow) = self.flows.get_mut(&entry).filter(|flow| flow.tag == tag) {
            (flow.next, flow.ack) = (next, ack);
        }
    }

    fn set_fin(&mut self, entry: FlowKey<N>, tag: u32, fin: u8) {
        if let Some(flow) = self.flows.get_mut(&entry).filter(|flow| flow.tag == tag) {
            flow.fin = fin;
        }
    }

    fn set_opposite_fin(&mut self, entry: FlowKey<N>, tag: u32, fin: u8) {
        if let Some(flow) = self.flows.get_mut(&entry).filter(|flow| flow.tag == tag) {
            flow.opposite_fin = fin;
        }
    }

    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted> {
        let exists = self.flows.contains_key(key);
        if exists && !replace {
            return Err(NotInserted::Exists);
        }
        if !exists && self.flows.len() >= self.capacity {
            return Err(NotInserted::Full);
        }
        self.flows.insert(*key, *flow);
        Ok(())
    }

    fn remove_flow(&mut self, key: &FlowKey<N>) {
        self.flows.remove(key);
    }

    fn insert_half_open(&mut self, key: &FlowKey<N>, entry: &HalfOpen<N>, replace: bool) -> Result<(), NotInserted> {
        let exists = self.half_open.contains_key(key);
        if exists && !replace {
            return Err(NotInserted::Exists);
        }
        if !exists && self.half_open.len() >= self.capacity {
            return Err(NotInserted::Full);
        }
        self.half_open.insert(*key, *entry);
        Ok(())
    }

    fn remove_half_open(&mut self, key: &FlowKey<N>) {
        self.half_open.remove(key);
    }

    fn ask_again(&mut self, key: &FlowKey<N>, backend: u32, segments: u8, now_s: u32) -> bool {
        let found =
            self.half_open.get_mut(key).filter(|entry| entry.flow.tag == tag(key) && entry.flow.backend == backend);
        let Some(entry) = found else { return false };
        (entry.segments, entry.flow.seen_s) = (segments, now_s);
        entry.flow.flags &= !flow_flags::REPLY_LOST;
        true
    }

    fn mark_answered(&mut self, key: &FlowKey<N>, backend: u32, answers: [u32; 2]) -> bool {
        let found =
            self.half_open.get_mut(key).filter(|entry| entry.flow.tag == tag(key) && entry.flow.backend == backend);
        found.map(|entry| (entry.flags, entry.answers) = (entry.flags | half_open_flags::ANSWERED, answers)).is_some()
    }

    fn mark_refused(&mut self, key: &FlowKey<N>, backend: u32, refused: u8) {
        let found =
            self.half_open.get_mut(key).filter(|entry| entry.flow.tag == tag(key) && entry.flow.backend == backend);
        if let Some(entry) = found {
            entry.refused = refused;
        }
    }

    fn mark(&mut self, key: &FlowKey<N>, backend: u32, flags: u8) {
        let found =
            self.half_open.get_mut(key).filter(|entry| entry.flow.tag == tag(key) && entry.flow.backend == backend);
        if let Some(entry) = found {
            entry.flags |= flags;
        }
    }

    fn fence(&mut self) {}

    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved {
        reserve(self, work, port, now_s)
    }

    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted {
        accept(self, work, now_s)
    }

    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established {
        establish(self, work, link, generation, now_s)
    }

    fn keep_entries(&mut self, work: &mut Work<N>, is_over: bool) {
        keep_entries(self, work, is_over);
    }
}
