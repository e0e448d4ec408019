//! The digest of what is in the tables: 64 sums, each over the services whose names have one hash. Two nodes compare 64 numbers, and then the services
//! of the buckets that differ. Pure.

use lb_model::{Accepted, ObjectName, hash};

/// How many buckets there are.
pub const BUCKETS: usize = 64;

/// A sum for each bucket. The sum of no service is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest([u64; BUCKETS]);

impl Default for Digest {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Digest {
    /// Of all services.
    pub fn of(accepted: &Accepted) -> Self {
        let mut digest = Self::default();
        digest.update(&Accepted::default(), accepted);
        digest
    }

    /// What was of `before` becomes what is of `after`; costs what differs. Returns whether anything does.
    pub fn update(&mut self, before: &Accepted, after: &Accepted) -> bool {
        let services = before.difference(after);
        for service in &services {
            let bucket = &mut self.0[bucket(service)];
            *bucket = bucket.wrapping_sub(before.hash_of(service).map_or(0, |hash| entry(service, hash)));
            *bucket = bucket.wrapping_add(after.hash_of(service).map_or(0, |hash| entry(service, hash)));
        }
        !services.is_empty()
    }

    /// Each bucket as 16 hexadecimal digits.
    pub fn buckets(&self) -> Vec<String> {
        self.0.iter().map(|bucket| hex(*bucket)).collect()
    }

    /// One number for all of them, as 16 hexadecimal digits.
    pub fn text(&self) -> String {
        let bytes: Vec<[u8; 8]> = self.0.iter().map(|bucket| bucket.to_be_bytes()).collect();
        hex(hash(bytes.iter().map(<[u8; 8]>::as_slice)))
    }
}

/// The bucket that a service is in.
pub fn bucket(service: &ObjectName) -> usize {
    let number = hash([service.namespace.as_bytes(), service.name.as_bytes()]) % BUCKETS as u64;
    usize::try_from(number).unwrap_or_default()
}

/// 16 hexadecimal digits.
pub fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

fn entry(service: &ObjectName, objects: u64) -> u64 {
    hash([service.namespace.as_bytes(), service.name.as_bytes(), &objects.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use lb_model::Mark;

    /// Services with the versions of their objects: the first is the Service itself.
    type Cluster = BTreeMap<u8, Vec<u8>>;

    fn accepted(cluster: &Cluster) -> Accepted {
        let mut accepted = Accepted::default();
        for (service, versions) in cluster {
            let name = ObjectName::new("demo", format!("s{service}"));
            for (object, version) in versions.iter().enumerate() {
                let (uid, version) = (object.to_string(), version.to_string());
                match object {
                    0 => accepted.services.add(&name, Mark::of("Service", &name, &uid, &version)),
                    _ => accepted.slices.add(&name, Mark::of("EndpointSlice", &name, &uid, &version)),
                }
            }
        }
        accepted
    }

    fn cluster() -> impl Strategy<Value = Cluster> {
        proptest::collection::btree_map(0..12_u8, proptest::collection::vec(0..4_u8, 1..4), 0..12)
    }

    proptest! {
        #![proptest_config(lb_seed::property(file!(), 128))]

        /// However a node came to its state, its digest is that of the state, and another state has another one.
        #[test]
        fn equal_digests_are_equal_states(steps in proptest::collection::vec(cluster(), 1..6), other in cluster()) {
            let (mut digest, mut held) = (Digest::default(), Accepted::default());
            for step in &steps {
                let next = accepted(step);
                prop_assert_eq!(digest.update(&held, &next), held != next);
                held = next;
            }
            let last = steps.last().expect("at least one");
            prop_assert_eq!(&digest, &Digest::of(&accepted(last)));
            let other_digest = Digest::of(&accepted(&other));
            prop_assert_eq!(digest.text() == other_digest.text(), *last == other);
        }

        /// The buckets that differ are those of the services that differ.
        #[test]
        fn buckets_differ_where_services_do(one in cluster(), other in cluster()) {
            let (one_accepted, other_accepted) = (accepted(&one), accepted(&other));
            let (one_digest, other_digest) = (Digest::of(&one_accepted), Digest::of(&other_accepted));
            let differing: Vec<usize> =
                (0..BUCKETS).filter(|at| one_digest.buckets()[*at] != other_digest.buckets()[*at]).collect();
            let all = one.keys().chain(other.keys()).filter(|service| one.get(service) != other.get(service));
            let mut expected: Vec<usize> =
                all.map(|service| bucket(&ObjectName::new("demo", format!("s{service}")))).collect();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(differing, expected);
        }
    }

    #[test]
    fn the_digest_of_a_state_never_changes() {
        let accepted = accepted(&[(1, vec![1, 2]), (2, vec![3])].into());
        assert_eq!(Digest::of(&accepted).text(), "aff72d0393ef060d", "agents of two versions compare it");
    }
}
