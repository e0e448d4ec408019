//! What a fast path would skip, and which flows may have one nevertheless.

use lb_common::abi::fast_path as open_to;

use crate::point::Role;

/// How many things that would be skipped are named.
pub(super) const MOST_NAMED: usize = 8;

/// What packets that pass the host's stack by would not meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Skips {
    /// Of this host: all of them.
    pub all: Vec<String>,
    /// Of its external links: those of flows to other nodes.
    pub to_nodes: Vec<String>,
}

impl Skips {
    /// Which flows are to have a fast path; of the obstacles no more are retained than are shown.
    pub fn open(&mut self) -> u32 {
        self.all.truncate(MOST_NAMED);
        self.to_nodes.truncate(MOST_NAMED);
        match (self.all.is_empty(), self.to_nodes.is_empty()) {
            (false, _) => 0,
            (true, false) => open_to::PODS,
            (true, true) => open_to::PODS | open_to::NODES,
        }
    }

    /// Those of a link of this role.
    pub fn of(&mut self, role: Role) -> &mut Vec<String> {
        if role == Role::External { &mut self.to_nodes } else { &mut self.all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_on_external_links_stands_against_other_nodes_alone() {
        let some = || vec!["a program".to_owned()];
        let open = |all, to_nodes| Skips { all, to_nodes }.open();
        assert_eq!(open(vec![], vec![]), open_to::PODS | open_to::NODES);
        assert_eq!(open(vec![], some()), open_to::PODS);
        assert_eq!(open(some(), vec![]), 0);
        assert_eq!(open(some(), some()), 0);
    }
}
