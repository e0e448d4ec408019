//! The addresses by which others reach this node, as last seen.

use std::{collections::BTreeSet, net::IpAddr};

/// All of them, and those that no link has at the moment.
#[derive(Debug)]
pub(super) struct NodeAddresses {
    all: BTreeSet<IpAddr>,
    absent: BTreeSet<IpAddr>,
}

impl NodeAddresses {
    pub fn new(present: BTreeSet<IpAddr>) -> Self {
        Self { all: present, absent: BTreeSet::new() }
    }

    pub fn all(&self) -> &BTreeSet<IpAddr> {
        &self.all
    }

    /// Those of them that no link has: they may come back.
    pub fn absent(&self) -> &BTreeSet<IpAddr> {
        &self.absent
    }

    /// Links have these now. One that a lease takes away for a moment ends no node port's flows: what is gone for good is forgotten in a round alone.
    pub fn update(&mut self, present: &BTreeSet<IpAddr>, is_round: bool) {
        if is_round {
            self.all.clone_from(present);
        } else {
            self.all.extend(present.iter().copied());
        }
        self.absent = self.all.difference(present).copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_goes_is_absent_until_a_round() {
        let [one, two] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut addresses = NodeAddresses::new([one].into());
        addresses.update(&[two].into(), false);
        assert_eq!((addresses.all(), addresses.absent()), (&[one, two].into(), &[one].into()));
        addresses.update(&[two].into(), true);
        assert_eq!((addresses.all(), addresses.absent()), (&[two].into(), &BTreeSet::new()));
    }
}
