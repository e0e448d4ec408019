//! Many services without traffic, whose backends change as fast as the agent follows: leaks show here.

use std::net::Ipv4Addr;

use super::objects;
use crate::cluster::stub::StubApi;
use crate::random::Random;

/// Backends that each service has on average, and at most.
const MOST: usize = 20;

/// The services and what the API says of them.
#[derive(Debug)]
pub struct Bulk {
    random: Random,
    /// By service and place: which pod it is; `None`: there is none.
    pods: Vec<Vec<Option<u64>>>,
    next_pod: u64,
    changes: u64,
}

impl Bulk {
    /// That many services, each with all its backends.
    pub fn start(api: &StubApi, services: u8, seed: u64) -> Self {
        let pods = vec![vec![Some(0); MOST]; services.into()];
        let this = Self { random: Random::new(seed), pods, next_pod: 1, changes: 0 };
        for number in 0..services {
            api.put(objects::service(&name(number.into()), Ipv4Addr::new(10, 96, 1, number)));
            api.put(this.slice(number.into()));
        }
        this
    }

    /// One endpoint of one service goes, comes, or comes back as another pod.
    pub fn change(&mut self, api: &StubApi) {
        let service = self.random.below(self.pods.len());
        let place = self.random.below(MOST);
        let replaced = self.random.one_in(4);
        let pod = &mut self.pods[service][place];
        *pod = match pod {
            Some(_) if !replaced => None,
            _ => {
                self.next_pod += 1;
                Some(self.next_pod)
            }
        };
        self.changes += 1;
        api.put(self.slice(service));
    }

    /// All backends come back.
    pub fn restore(&mut self, api: &StubApi) {
        for service in 0..self.pods.len() {
            for pod in &mut self.pods[service] {
                if pod.is_none() {
                    self.next_pod += 1;
                    *pod = Some(self.next_pod);
                }
            }
            self.changes += 1;
            api.put(self.slice(service));
        }
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Backends that the API lists now.
    pub fn listed(&self) -> usize {
        self.pods.iter().flatten().flatten().count()
    }

    /// Whether a service that `ballast get` shows is one of these.
    pub fn owns(service: &str) -> bool {
        service.starts_with("bulk-")
    }

    fn slice(&self, service: usize) -> serde_json::Value {
        let third = u8::try_from(service).expect("at most 256 services");
        let address = |place: usize| Ipv4Addr::new(10, 1, third, u8::try_from(place + 1).expect("few places"));
        let listed = self.pods[service].iter().enumerate().filter_map(|(place, pod)| Some((address(place), (*pod)?)));
        objects::slice(&name(service), listed)
    }
}

fn name(service: usize) -> String {
    format!("bulk-{service}")
}
