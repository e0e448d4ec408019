//! Service ports and addresses whose change waits for a run: each run writes a bounded part of them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use lb_model::{ObjectName, PortKey};

/// What waits. Services are served round-robin, one port at a time, so that a small service never waits for all of a large one.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    ports: BTreeMap<ObjectName, BTreeSet<PortKey>>,
    /// The services of `ports`, each once; the next one first.
    queue: VecDeque<ObjectName>,
    vips: BTreeSet<IpAddr>,
}

impl Backlog {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.vips.is_empty()
    }

    /// How many service ports and addresses wait.
    pub fn len(&self) -> usize {
        self.ports.values().map(BTreeSet::len).sum::<usize>() + self.vips.len()
    }

    pub fn has_service(&self, key: &PortKey) -> bool {
        self.ports.get(&key.service).is_some_and(|ports| ports.contains(key))
    }

    /// The service ports that wait.
    pub fn services(&self) -> impl Iterator<Item = &PortKey> {
        self.ports.values().flatten()
    }

    pub fn has_vip(&self, address: IpAddr) -> bool {
        self.vips.contains(&address)
    }

    pub fn add_service(&mut self, key: PortKey) {
        let ports = self.ports.entry(key.service.clone()).or_insert_with(|| {
            self.queue.push_back(key.service.clone());
            BTreeSet::new()
        });
        ports.insert(key);
    }

    /// Chooses the ports of this run: of those that `changed` just now, and of those that waited. Where there are both, each side
    /// has half of `max`, in the units of `work`, and at least one port.
    pub fn choose(
        &mut self,
        changed: BTreeSet<PortKey>,
        max: usize,
        work: impl Fn(&PortKey) -> usize,
    ) -> BTreeSet<PortKey> {
        let mut new = Self::default();
        changed.into_iter().filter(|key| !self.has_service(key)).for_each(|key| new.add_service(key));
        let share = if self.queue.is_empty() || new.queue.is_empty() { max } else { max.div_ceil(2) };
        let mut chosen = BTreeSet::new();
        for side in [&mut new, &mut *self] {
            let mut done = 0;
            while done < share
                && let Some(key) = side.next()
            {
                done += work(&key);
                chosen.insert(key);
            }
        }
        while let Some(key) = new.next() {
            self.add_service(key);
        }
        chosen
    }

    fn next(&mut self) -> Option<PortKey> {
        let service = self.queue.pop_front()?;
        let ports = self.ports.get_mut(&service)?;
        let key = ports.pop_first();
        if ports.is_empty() {
            self.ports.remove(&service);
        } else {
            self.queue.push_back(service);
        }
        key
    }

    /// Takes a port out that is to be handled now. False if it did not wait.
    pub fn take_service(&mut self, key: &PortKey) -> bool {
        let Some(ports) = self.ports.get_mut(&key.service) else { return false };
        let waited = ports.remove(key);
        if ports.is_empty() {
            self.ports.remove(&key.service);
            self.queue.retain(|service| *service != key.service);
        }
        waited
    }

    /// Chooses the addresses of this run, at most `max`: of those that changed just now, of those that were `freed`, and of all
    /// that wait once no service port does; each only if it is ready.
    pub fn choose_vips(
        &mut self,
        changed: BTreeSet<IpAddr>,
        freed: impl Iterator<Item = IpAddr>,
        max: usize,
        is_ready: impl Fn(&Self, IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let freed = freed.filter(|address| self.vips.contains(address));
        let mut looked: BTreeSet<IpAddr> = changed.iter().copied().chain(freed).collect();
        self.vips.extend(changed);
        if self.queue.is_empty() {
            looked.clone_from(&self.vips);
        }
        let chosen: BTreeSet<IpAddr> =
            looked.into_iter().filter(|address| is_ready(self, *address)).take(max).collect();
        self.vips.retain(|address| !chosen.contains(address));
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::Protocol;

    fn ports(service: &str, count: u16) -> BTreeSet<PortKey> {
        let key = |port| PortKey { service: ObjectName::new("demo", service), port, protocol: Protocol::Tcp };
        (1..=count).map(key).collect()
    }

    fn names(chosen: &BTreeSet<PortKey>) -> Vec<String> {
        chosen.iter().map(|key| format!("{}:{}", key.service.name, key.port)).collect()
    }

    #[test]
    fn a_run_takes_a_bounded_part_and_the_rest_comes_later() {
        let mut backlog = Backlog::default();
        let mut runs = vec![backlog.choose(ports("large", 5), 20, |_| 10)];
        while !backlog.is_empty() {
            runs.push(backlog.choose(BTreeSet::new(), 20, |_| 10));
        }
        assert_eq!(runs.iter().map(BTreeSet::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(runs.into_iter().flatten().collect::<BTreeSet<_>>(), ports("large", 5));
    }

    #[test]
    fn services_take_turns_and_what_comes_later_does_not_wait_for_what_is_left() {
        let mut backlog = Backlog::default();
        let mut both = ports("large", 5);
        both.extend(ports("small", 1));
        assert_eq!(names(&backlog.choose(both, 20, |_| 10)), ["large:1", "small:1"]);
        assert_eq!(names(&backlog.choose(ports("web", 1), 20, |_| 10)), ["large:2", "web:1"]);
    }

    #[test]
    fn changes_without_end_do_not_keep_back_what_waits() {
        let mut backlog = Backlog::default();
        backlog.choose(ports("large", 5), 1, |_| 10);
        for port in 2..=5 {
            let chosen = backlog.choose(ports("busy", 1), 1, |_| 10);
            assert!(names(&chosen).contains(&format!("large:{port}")), "{chosen:?}");
        }
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_port_that_is_handled_out_of_turn_waits_no_longer() {
        let mut backlog = Backlog::default();
        backlog.choose(ports("large", 3), 1, |_| 1);
        for key in ports("large", 3) {
            assert_eq!(backlog.take_service(&key), key.port > 1);
        }
        assert!(backlog.is_empty());
        assert_eq!(backlog.choose(BTreeSet::new(), 1, |_| 1), BTreeSet::new());
    }
}
