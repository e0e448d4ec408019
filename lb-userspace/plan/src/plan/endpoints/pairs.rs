//! Two entries with one address in the slices of a Service, as after a pod's address was used again.

use std::net::SocketAddr;

use crate::plan::{Cause, EndpointProblem};
use lb_model::{Endpoint, Family, Slice};

/// An entry of a slice.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub address: SocketAddr,
    pub listed: &'a Endpoint,
    pub slice: &'a Slice,
    /// It is on this node.
    pub is_here: bool,
}

impl Entry<'_> {
    /// The same pod in the same state is in two slices for a moment, while the API's controller moves it.
    fn is_like(&self, other: &Self) -> bool {
        let identity = |one: &Endpoint| (one.ready, one.terminating, one.uid_hash, one.node.clone());
        identity(self.listed) == identity(other.listed)
    }

    /// Its slice, its state and its node.
    fn words(&self) -> String {
        let state = match (self.listed.ready, self.listed.terminating) {
            (true, _) => "ready",
            (false, true) => "terminating",
            (false, false) => "unready",
        };
        let node = self.listed.node.as_ref().map_or_else(String::new, |node| format!(", on {node}"));
        format!("EndpointSlice {} ({state}{node})", self.slice.name)
    }
}

/// The first pair of each family, and how many more there are.
#[derive(Default)]
pub(super) struct Pairs {
    first: [Option<(String, bool)>; 2],
    more: [usize; 2],
}

impl Pairs {
    /// `first` serves, `other` does not.
    pub fn add(&mut self, first: Entry<'_>, other: Entry<'_>) {
        if first.is_like(&other) {
            return;
        }
        let at = usize::from(first.address.is_ipv6());
        if self.first[at].is_some() {
            self.more[at] += 1;
            return;
        }
        let found = format!("{} of {} serves, that of {} does not", first.address, first.words(), other.words());
        self.first[at] = Some((found, first.is_here));
    }

    pub fn problems(self) -> Vec<EndpointProblem> {
        let all = Family::ALL.into_iter().zip(self.first).zip(self.more);
        let problems = all.filter_map(|((family, first), more)| {
            let (first, is_said_here) = first?;
            let found = if more > 0 { format!("{first}; {more} more such pairs") } else { first };
            let (lacks, is_partial) = (None, false);
            Some(EndpointProblem { family, cause: Cause::TwoEntries, found, lacks, is_partial, is_said_here })
        });
        problems.collect()
    }
}
