//! Who claims what, and who has it: the first in the order of the claims, whatever the order in which they came.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{
    Frontend, FrontendKind,
    claim::{Claim, ServiceClaim, service_claim},
    frontends,
    node_context::NodeContext,
};
use lb_model::{ObjectName, Protocol, Service};

/// Claims of the kind `C` on things of the kind `K`.
#[derive(Debug)]
pub(super) struct Claims<K, C> {
    first: BTreeMap<K, C>,
    /// Those that are not the first: few things are claimed twice.
    others: BTreeMap<K, BTreeSet<C>>,
    /// The first claim on what was touched since it was last asked, as it was before.
    touched: BTreeMap<K, Option<C>>,
}

impl<K, C> Default for Claims<K, C> {
    fn default() -> Self {
        Self { first: BTreeMap::new(), others: BTreeMap::new(), touched: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, C: Ord + Clone> Claims<K, C> {
    pub fn put(&mut self, key: K, claim: C) {
        self.touch(&key);
        let Some(first) = self.first.get_mut(&key) else {
            self.first.insert(key, claim);
            return;
        };
        let later = if claim < *first { std::mem::replace(first, claim) } else { claim };
        if later != *first {
            self.others.entry(key).or_default().insert(later);
        }
    }

    pub fn remove(&mut self, key: &K, claim: &C) {
        self.touch(key);
        let others = self.others.get_mut(key);
        if self.first.get(key) == Some(claim) {
            match others.and_then(BTreeSet::pop_first) {
                Some(next) => self.first.insert(key.clone(), next),
                None => self.first.remove(key),
            };
        } else if let Some(others) = others {
            others.remove(claim);
        }
        if self.others.get(key).is_some_and(BTreeSet::is_empty) {
            self.others.remove(key);
        }
    }

    fn touch(&mut self, key: &K) {
        if !self.touched.contains_key(key) {
            self.touched.insert(key.clone(), self.first.get(key).cloned());
        }
    }

    /// The claim that has the thing.
    pub fn first(&self, key: &K) -> Option<&C> {
        self.first.get(key)
    }

    /// All that has been claimed, from `key` on.
    pub fn from(&self, key: K) -> impl Iterator<Item = (&K, &C)> {
        self.first.range(key..)
    }

    /// All claims on the thing.
    pub fn all(&self, key: &K) -> impl Iterator<Item = &C> {
        self.first.get(key).into_iter().chain(self.others.get(key).into_iter().flatten())
    }

    /// What has come to another since the last call.
    pub fn take_changed(&mut self) -> Vec<K> {
        let touched = std::mem::take(&mut self.touched);
        let changed = touched.into_iter().filter(|(key, before)| self.first.get(key) != before.as_ref());
        changed.map(|(key, _)| key).collect()
    }
}

/// All claims of the services that are ours.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    pub frontends: Claims<Frontend, Claim>,
    /// Addresses that are cluster IPs: no load balancer or external IP of another service shadows one, not even at a port that it does not
    /// serve.
    pub cluster_ips: Claims<IpAddr, ServiceClaim>,
    /// Health-check node ports.
    pub health: Claims<u16, ServiceClaim>,
}

impl Claimed {
    /// What a service claims, if it is ours.
    pub fn put_service(&mut self, service: &Service, context: &NodeContext) {
        if frontends::is_ours(service, context) {
            for (frontend, claim) in frontends::claims(service, context) {
                self.frontends.put(frontend, claim);
            }
            for address in &service.cluster_ips {
                self.cluster_ips.put(*address, service_claim(service));
            }
            if let Some(port) = service.health_check_node_port {
                self.health.put(port, service_claim(service));
            }
        }
    }

    pub fn remove_service(&mut self, service: &Service, context: &NodeContext) {
        if frontends::is_ours(service, context) {
            for (frontend, claim) in frontends::claims(service, context) {
                self.frontends.remove(&frontend, &claim);
            }
            for address in &service.cluster_ips {
                self.cluster_ips.remove(address, &service_claim(service));
            }
            if let Some(port) = service.health_check_node_port {
                self.health.remove(&port, &service_claim(service));
            }
        }
    }

    /// What a service has that the tables hold: older than any other claim.
    pub fn put_held(&mut self, name: &ObjectName, held: impl Iterator<Item = (Frontend, Claim)>) {
        for (frontend, claim) in held {
            if claim.kind == FrontendKind::ClusterIp {
                self.cluster_ips.put(frontend.address, (i64::MIN, name.clone()));
            }
            self.frontends.put(frontend, claim);
        }
    }

    pub fn remove_held(&mut self, name: &ObjectName, held: impl Iterator<Item = (Frontend, Claim)>) {
        for (frontend, claim) in held {
            self.cluster_ips.remove(&frontend.address, &(i64::MIN, name.clone()));
            self.frontends.remove(&frontend, &claim);
        }
    }

    /// Who has the frontend; `None`: nobody.
    pub fn owner(&self, frontend: &Frontend) -> Option<&Claim> {
        self.frontends.all(frontend).find(|claim| self.shadowed(frontend, claim).is_none())
    }

    /// The service whose cluster IP the claim would shadow.
    pub fn shadowed(&self, frontend: &Frontend, claim: &Claim) -> Option<&ObjectName> {
        let (_, owner) = self.cluster_ips.first(&frontend.address)?;
        let shadows = claim.kind != FrontendKind::ClusterIp && *owner != claim.service;
        shadows.then_some(owner)
    }

    /// All claims at an address.
    pub fn at(&self, address: IpAddr) -> impl Iterator<Item = (&Frontend, &Claim)> {
        let from = self.frontends.from(Frontend { address, port: 0, protocol: Protocol::Tcp });
        from.take_while(move |(frontend, _)| frontend.address == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_claim_has_it_whatever_the_order_and_the_loser_goes_unnoticed() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut claims = Claims::default();
            for claim in order {
                claims.put("x", claim);
            }
            assert_eq!((claims.first(&"x"), claims.all(&"x").count()), (Some(&1), 3));
            assert_eq!(claims.take_changed(), ["x"]);
            claims.remove(&"x", &2);
            assert_eq!(claims.take_changed(), [""; 0]);
            claims.remove(&"x", &1);
            assert_eq!((claims.first(&"x").copied(), claims.take_changed()), (Some(3), vec!["x"]));
            claims.remove(&"x", &3);
            assert_eq!((claims.first(&"x").copied(), claims.take_changed()), (None, vec!["x"]));
            assert!(claims.others.is_empty());
        }
    }
}
