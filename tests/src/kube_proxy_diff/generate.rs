//! Random clusters, small and full of corners: the same seed gives the same cluster for good.

mod endpoints;
mod services;

use super::cluster::Cluster;
use crate::random::Random;

/// The label of slices that no proxy serves.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Most clusters that a batch may have: their addresses differ in one byte.
pub const PLACES: u8 = 200;

/// The cluster of this seed, at this place of a batch.
pub fn cluster(seed: u64, place: u8) -> Cluster {
    assert!(place < PLACES, "place {place} of {PLACES}");
    let mut random = Random::new(seed);
    let namespace = format!("c{seed}");
    let mut pool = Pool { place, namespace, node_ports: 0, vips: Vec::new() };
    let mut cluster = Cluster { seed, place, services: Vec::new(), slices: Vec::new() };
    for number in 0..=random.below(3) {
        let name = format!("s{number}");
        let service = services::service(&mut random, &mut pool, &name, number);
        let slices = endpoints::slices(&mut random, &pool, &name, &service);
        // Slices may also stand there before their Service, or after it.
        if !random.one_in(40) {
            cluster.services.push(service);
        }
        cluster.slices.extend(slices);
    }
    cluster
}

/// What the objects of one cluster draw from.
struct Pool {
    place: u8,
    namespace: String,
    node_ports: u16,
    /// Addresses that services of this cluster were given from outside, to be claimed again.
    vips: Vec<String>,
}

impl Pool {
    fn node_port(&mut self) -> u16 {
        self.node_ports += 1;
        30_000 + u16::from(self.place) * 10 + self.node_ports - 1
    }
}

/// One of these, the first as often as its weight says.
fn weighted<T: Copy>(random: &mut Random, choices: &[(usize, T)]) -> T {
    let total: usize = choices.iter().map(|(weight, _)| weight).sum();
    let mut at = random.below(total);
    for (weight, choice) in choices {
        if at < *weight {
            return *choice;
        }
        at -= weight;
    }
    unreachable!("the weights add up to {total}")
}
