//! Which state of which objects a snapshot is made of: a mark for each object, summed up by service.

use std::collections::BTreeSet;

use imbl::{OrdMap, ordmap::DiffItem};
use sha2::{Digest as _, Sha256};

use super::ObjectName;

/// Stands for one state of one object; 0: the source has none, as a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// `version`: the object's resource version. The API server changes it with every write, and every node reads the same one.
    pub fn of(kind: &str, name: &ObjectName, uid: &str, version: &str) -> Self {
        let parts = [kind, &name.namespace, &name.name, uid, version];
        Self(hash(parts.into_iter().map(str::as_bytes)))
    }
}

/// The first eight bytes of SHA-256 over the parts, each behind its length: the same with every version of the agent.
pub fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = <[u8; 32]>::from(hash.finalize());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The sum of the marks of each service's objects. A copy shares the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(OrdMap<ObjectName, u64>);

impl Marks {
    /// An object of the service comes.
    pub fn add(&mut self, service: &ObjectName, mark: Mark) {
        self.put(service, self.sum(service).wrapping_add(mark.0));
    }

    /// An object of the service goes.
    pub fn remove(&mut self, service: &ObjectName, mark: Mark) {
        self.put(service, self.sum(service).wrapping_sub(mark.0));
    }

    fn sum(&self, service: &ObjectName) -> u64 {
        self.0.get(service).copied().unwrap_or_default()
    }

    fn put(&mut self, service: &ObjectName, sum: u64) {
        // A sum of some objects is 0 once in 2^64.
        if sum == 0 {
            self.0.remove(service)
        } else {
            self.0.insert(service.clone(), sum)
        };
    }

    /// Takes the service's sum of `other`.
    fn take(&mut self, service: &ObjectName, other: &Self) {
        self.put(service, other.sum(service));
    }
}

/// The objects that a source accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    pub services: Marks,
    pub slices: Marks,
    /// The highest resource version among the changes of each kind; 0: none.
    pub services_version: u64,
    pub slices_version: u64,
}

impl Accepted {
    /// These objects, but those of `others` where a service is not in the tables as it is wanted.
    #[must_use]
    pub fn except<'a>(&self, services: impl IntoIterator<Item = &'a ObjectName>, others: &Self) -> Self {
        let mut all = self.clone();
        for service in services {
            all.services.take(service, &others.services);
            all.slices.take(service, &others.slices);
        }
        all
    }

    /// The hash of a service's objects; `None`: it has none.
    pub fn hash_of(&self, service: &ObjectName) -> Option<u64> {
        let sums = [self.services.0.get(service), self.slices.0.get(service)];
        sums.iter()
            .any(Option::is_some)
            .then(|| sums.into_iter().flatten().fold(0_u64, |all, sum| all.wrapping_add(*sum)))
    }

    /// The services whose objects are not the same; costs what differs.
    pub fn difference(&self, other: &Self) -> BTreeSet<ObjectName> {
        let of = |one: &Marks, other: &Marks| one.0.diff(&other.0).map(changed).collect::<Vec<_>>();
        let (services, slices) = (of(&self.services, &other.services), of(&self.slices, &other.slices));
        services.into_iter().chain(slices).collect()
    }

    /// Each service with a hash of its objects, in the order of names.
    pub fn hashes(&self) -> impl Iterator<Item = (&ObjectName, u64)> {
        let slices_alone = self.slices.0.keys().filter(|service| !self.services.0.contains_key(*service));
        let mut names: Vec<&ObjectName> = self.services.0.keys().chain(slices_alone).collect();
        names.sort_unstable();
        names.into_iter().map(|name| (name, self.services.sum(name).wrapping_add(self.slices.sum(name))))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the items of an iterator")]
fn changed(item: DiffItem<'_, '_, ObjectName, u64>) -> ObjectName {
    let (DiffItem::Add(name, _) | DiffItem::Update { new: (name, _), .. } | DiffItem::Remove(name, _)) = item;
    name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("demo", name)
    }

    #[test]
    fn a_mark_is_of_kind_name_uid_and_version() {
        let mark = Mark::of("Service", &name("web"), "u1", "7");
        assert_eq!(mark, Mark::of("Service", &name("web"), "u1", "7"));
        assert_eq!(mark, Mark(0x7eab_5da0_a300_b37a), "agents of two versions compare it");
        for other in [
            Mark::of("EndpointSlice", &name("web"), "u1", "7"),
            Mark::of("Service", &name("db"), "u1", "7"),
            Mark::of("Service", &name("web"), "u2", "7"),
            Mark::of("Service", &name("web"), "u1", "8"),
            Mark::of("Service", &name("web"), "u17", ""),
        ] {
            assert_ne!(mark, other);
        }
    }

    #[test]
    fn what_goes_leaves_nothing() {
        let mut marks = Marks::default();
        let (one, other) =
            (Mark::of("Service", &name("web"), "u1", "7"), Mark::of("EndpointSlice", &name("web"), "u2", "8"));
        marks.add(&name("web"), one);
        marks.add(&name("web"), other);
        marks.remove(&name("web"), one);
        marks.remove(&name("web"), other);
        assert_eq!(marks, Marks::default());
    }

    #[test]
    fn a_service_that_is_not_written_counts_as_it_was() {
        let (mut before, mut after) = (Accepted::default(), Accepted::default());
        for (service, old, new) in [("web", "1", "3"), ("db", "2", "4")] {
            before.services.add(&name(service), Mark::of("Service", &name(service), "u", old));
            after.services.add(&name(service), Mark::of("Service", &name(service), "u", new));
        }
        after.services.add(&name("new"), Mark::of("Service", &name("new"), "u", "5"));
        let programmed = after.except([&name("db"), &name("new")], &before);
        let hashes: Vec<_> = programmed.hashes().collect();
        let of = |accepted: &Accepted, wanted: &str| {
            accepted.hashes().find(|(service, _)| **service == name(wanted)).map(|(_, hash)| hash)
        };
        assert_eq!(hashes.len(), 2, "the new service is not there");
        assert_eq!((of(&programmed, "web"), of(&programmed, "db")), (of(&after, "web"), of(&before, "db")));
    }
}
