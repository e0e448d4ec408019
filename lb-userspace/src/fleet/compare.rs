//! Which nodes have other objects in their tables than most nodes, and which are only behind. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{BucketServices, NodeStatus};

/// A node that has an earlier state of the others for longer is behind.
pub const TOLERANCE_SECONDS: f64 = 10.0;
/// So many nodes of the reference are asked again.
const REFERENCE_NODES: usize = 3;

/// What a node answered; otherwise, why it did not.
pub type Answer = Result<NodeStatus, String>;

/// What is known of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It has the reference's objects in its tables, or had them less than [`TOLERANCE_SECONDS`] ago.
    Same,
    /// It has them not: an earlier state of the reference, or it does not know the reference's last change.
    Behind(String),
    /// It knows of all changes of the reference, and has other objects in its tables.
    Differs,
    /// Its source is stale.
    Stale(String),
    /// Its tables do not hold the first list yet.
    Starting,
    NoAnswer(String),
}

/// The last answers of all nodes, and the digests that nodes had while they were asked.
#[derive(Debug, Default)]
pub struct Comparison {
    answers: BTreeMap<String, Answer>,
    /// The digests that each node had while it was asked.
    seen: BTreeMap<String, BTreeSet<String>>,
    /// The digest of most nodes in the first answers.
    reference: Option<String>,
    /// Digests of the reference's nodes, and how many seconds ago they were last in force.
    ages: BTreeMap<String, f64>,
    /// The last changes that all of the reference's nodes have.
    programmed: super::answer::Versions,
}

impl Comparison {
    /// Compares the first answers. The reference is the digest of most nodes that are fresh; of several, the one with the latest change.
    pub fn new(answers: BTreeMap<String, Answer>) -> Self {
        let reference = reference(&answers);
        let mut comparison = Self { reference, ..Self::default() };
        let nodes = comparison.nodes_of_reference(&answers);
        comparison.learn(answers, &nodes, 0.0);
        comparison
    }

    /// The digest of most nodes; `None`: no node has one.
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    pub fn answers(&self) -> &BTreeMap<String, Answer> {
        &self.answers
    }

    /// Some of the nodes that had the reference's digest, to be asked again with those that differ.
    pub fn reference_nodes(&self) -> Vec<String> {
        self.nodes_of_reference(&self.answers).into_iter().take(REFERENCE_NODES).collect()
    }

    /// Nodes whose answers may only be of another moment.
    pub fn undecided(&self) -> Vec<String> {
        let is_open = |answer: &Answer, verdict| answer.is_ok() && matches!(verdict, Verdict::Differs);
        let open = self.answers.iter().filter(|(node, answer)| is_open(answer, self.verdict(node)));
        open.map(|(node, _)| node.clone()).collect()
    }

    /// Takes later answers of some nodes, `seconds` after the ones before. `nodes`: those of the reference.
    pub fn again(&mut self, answers: BTreeMap<String, Answer>, nodes: &[String], seconds: f64) {
        // One that does not answer now did so before.
        let answered = answers.into_iter().filter(|(_, answer)| answer.is_ok()).collect();
        self.learn(answered, nodes, seconds);
    }

    fn learn(&mut self, answers: BTreeMap<String, Answer>, nodes: &[String], seconds: f64) {
        self.ages.values_mut().for_each(|age| *age += seconds);
        for status in nodes.iter().filter_map(|node| answers.get(node)?.as_ref().ok()) {
            for past in &status.recent {
                let age = self.ages.entry(past.digest.clone()).or_insert(past.age_seconds);
                *age = age.min(past.age_seconds);
            }
            self.ages.insert(status.digest.clone(), 0.0);
            let (known, new) = (&mut self.programmed, status.programmed);
            known.services = known.services.max(new.services);
            known.endpoint_slices = known.endpoint_slices.max(new.endpoint_slices);
        }
        for (node, answer) in &answers {
            if let Ok(status) = answer {
                self.seen.entry(node.clone()).or_default().insert(status.digest.clone());
            }
        }
        self.answers.extend(answers);
    }

    fn nodes_of_reference(&self, answers: &BTreeMap<String, Answer>) -> Vec<String> {
        let is_of = |node: &str, answer: &Answer| {
            let Ok(status) = answer else { return false };
            let had =
                self.seen.get(node).is_some_and(|seen| self.reference.as_ref().is_some_and(|one| seen.contains(one)));
            had || (is_fresh(status) && Some(&status.digest) == self.reference.as_ref())
        };
        answers.iter().filter(|(node, answer)| is_of(node, answer)).map(|(node, _)| node.clone()).collect()
    }

    /// What is known of the node.
    pub fn verdict(&self, node: &str) -> Verdict {
        let status = match self.answers.get(node) {
            None => return Verdict::NoAnswer("no agent runs there".to_owned()),
            Some(Err(reason)) => return Verdict::NoAnswer(reason.clone()),
            Some(Ok(status)) => status,
        };
        if let Some(reason) = &status.stale {
            return Verdict::Stale(reason.clone());
        }
        if !status.synced {
            return Verdict::Starting;
        }
        // One of its digests was the reference's a moment ago: then one of the two was only asked earlier.
        let ages = self.seen.get(node).into_iter().flatten().filter_map(|digest| self.ages.get(digest));
        match ages.copied().reduce(f64::min) {
            Some(age) if age <= TOLERANCE_SECONDS => Self::lag(status).map_or(Verdict::Same, Verdict::Behind),
            Some(age) => Verdict::Behind(format!("its tables hold what most nodes had {age:.0} s ago")),
            None => Self::lag(status).or_else(|| self.unknown_change(status)).map_or(Verdict::Differs, Verdict::Behind),
        }
    }

    /// The node has not programmed what it knows.
    fn lag(status: &NodeStatus) -> Option<String> {
        let lag = status.lag_seconds;
        (lag > TOLERANCE_SECONDS).then(|| format!("a change waits for {lag:.0} s to be in its tables"))
    }

    /// The node cannot know the reference's last change.
    fn unknown_change(&self, status: &NodeStatus) -> Option<String> {
        let (known, wanted) = (status.known, self.programmed);
        (!known.reach(wanted)).then(|| {
            let behind = if known.services < wanted.services { "services" } else { "endpointslices" };
            let (known, wanted) = match behind {
                "services" => (known.services, wanted.services),
                _ => (known.endpoint_slices, wanted.endpoint_slices),
            };
            format!("its watch of {behind} is at resource version {known}, that of most nodes at {wanted}")
        })
    }
}

fn is_fresh(status: &NodeStatus) -> bool {
    status.synced && status.stale.is_none()
}

fn reference(answers: &BTreeMap<String, Answer>) -> Option<String> {
    let mut counts = BTreeMap::<&str, (usize, super::answer::Versions)>::new();
    let answered = || answers.values().filter_map(|answer| answer.as_ref().ok()).filter(|status| status.synced);
    let any_fresh = answered().any(is_fresh);
    for status in answered().filter(|status| is_fresh(status) || !any_fresh) {
        let (count, versions) = counts.entry(&status.digest).or_default();
        *count += 1;
        *versions = (*versions).max(status.programmed);
    }
    counts.into_iter().max_by_key(|(digest, rank)| (*rank, *digest)).map(|(digest, _)| digest.to_owned())
}

/// The buckets of two nodes that are not the same.
pub fn differing_buckets(one: &NodeStatus, other: &NodeStatus) -> Vec<usize> {
    let count = one.buckets.len().max(other.buckets.len());
    (0..count).filter(|at| one.buckets.get(*at) != other.buckets.get(*at)).collect()
}

/// The services of a node, and of one of the reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicesOfTwo {
    pub node: BucketServices,
    pub reference: BucketServices,
}

/// The services that differ in two readings, and that neither side changed between: what only changes at the moment is left out.
pub fn differing_services(before: &ServicesOfTwo, after: &ServicesOfTwo) -> Vec<String> {
    let names: BTreeSet<&String> = after.node.services.keys().chain(after.reference.services.keys()).collect();
    let of = |two: &ServicesOfTwo, name: &str| {
        (two.node.services.get(name).cloned(), two.reference.services.get(name).cloned())
    };
    let differs = |name: &&&String| {
        let (was, is) = (of(before, name), of(after, name));
        was == is && is.0 != is.1
    };
    names.iter().filter(differs).map(|name| (*name).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::answer::{Past, Versions};

    fn at(version: u64) -> Versions {
        Versions { services: version, endpoint_slices: version }
    }

    fn node(digest: &str) -> NodeStatus {
        let (programmed, known) = (at(100), at(100));
        NodeStatus { synced: true, digest: digest.to_owned(), programmed, known, ..NodeStatus::default() }
    }

    fn answers<const N: usize>(all: [(&str, NodeStatus); N]) -> BTreeMap<String, Answer> {
        all.into_iter().map(|(name, status)| (name.to_owned(), Ok(status))).collect()
    }

    fn past(digest: &str, age_seconds: f64) -> Past {
        Past { digest: digest.to_owned(), age_seconds }
    }

    #[test]
    fn the_reference_is_what_most_fresh_nodes_have() {
        let stale = NodeStatus { stale: Some("lost".to_owned()), ..node("old") };
        let all = answers([
            ("n1", node("new")),
            ("n2", node("new")),
            ("n3", stale.clone()),
            ("n4", stale.clone()),
            ("n5", stale.clone()),
        ]);
        assert_eq!(Comparison::new(all).reference(), Some("new"));
        let later = NodeStatus { programmed: at(101), ..node("a") };
        let tie = answers([("n1", node("b")), ("n2", later)]);
        assert_eq!(Comparison::new(tie).reference(), Some("a"), "the later change");
        assert_eq!(Comparison::new(answers([("n1", stale)])).reference(), Some("old"), "all are stale");
        assert_eq!(Comparison::new(BTreeMap::new()).reference(), None);
    }

    #[test]
    fn a_node_that_differs_is_told_from_one_that_is_behind() {
        let reference = NodeStatus { recent: vec![past("one", 3.0), past("two", 60.0)], ..node("now") };
        let mut all = answers([
            ("n1", reference.clone()),
            ("n2", reference),
            ("earlier", node("one")),
            ("stuck", node("two")),
            ("differs", node("bad")),
            ("unaware", NodeStatus { known: Versions { services: 100, endpoint_slices: 90 }, ..node("bad 2") }),
            ("slow", NodeStatus { lag_seconds: 11.0, ..node("bad 3") }),
            ("stale", NodeStatus { stale: Some("the API does not answer".to_owned()), ..node("now") }),
            ("new", NodeStatus { synced: false, ..NodeStatus::default() }),
        ]);
        all.insert("gone".to_owned(), Err("connection refused".to_owned()));
        let comparison = Comparison::new(all);
        let behind = |text: &str| Verdict::Behind(text.to_owned());
        for (name, verdict) in [
            ("n1", Verdict::Same),
            ("earlier", Verdict::Same),
            ("stuck", behind("its tables hold what most nodes had 60 s ago")),
            ("differs", Verdict::Differs),
            ("unaware", behind("its watch of endpointslices is at resource version 90, that of most nodes at 100")),
            ("slow", behind("a change waits for 11 s to be in its tables")),
            ("stale", Verdict::Stale("the API does not answer".to_owned())),
            ("new", Verdict::Starting),
            ("gone", Verdict::NoAnswer("connection refused".to_owned())),
            ("other", Verdict::NoAnswer("no agent runs there".to_owned())),
        ] {
            assert_eq!(comparison.verdict(name), verdict, "{name}");
        }
        assert_eq!(comparison.undecided(), ["differs"]);
    }

    #[test]
    fn a_node_that_was_only_asked_later_is_the_same() {
        let mut comparison = Comparison::new(answers([("n1", node("a")), ("n2", node("a")), ("ahead", node("b"))]));
        assert_eq!(comparison.undecided(), ["ahead"]);
        let nodes = comparison.reference_nodes();
        assert_eq!(nodes, ["n1", "n2"]);
        let later = NodeStatus { recent: vec![past("b", 0.2), past("a", 0.9)], ..node("c") };
        comparison.again(answers([("n1", later.clone()), ("n2", later), ("ahead", node("d"))]), &nodes, 1.0);
        assert_eq!(comparison.verdict("ahead"), Verdict::Same, "it had what the others have had since");
        assert_eq!(comparison.reference_nodes(), ["n1", "n2"]);
        assert!(comparison.undecided().is_empty());
    }

    /// A node that got stuck at an earlier state is not excused by the others having had that state.
    #[test]
    fn a_node_that_differs_goes_on_doing_so() {
        let mut comparison = Comparison::new(answers([("n1", node("a")), ("n2", node("a")), ("bad", node("x"))]));
        let nodes = comparison.reference_nodes();
        for _ in 0..2 {
            comparison.again(answers([("n1", node("a")), ("n2", node("a")), ("bad", node("x"))]), &nodes, 1.0);
        }
        assert_eq!(comparison.verdict("bad"), Verdict::Differs);
        comparison.again([("bad".to_owned(), Err("late".to_owned()))].into(), &nodes, 1.0);
        assert_eq!(comparison.verdict("bad"), Verdict::Differs, "it answered before");
    }

    #[test]
    fn services_that_change_between_two_readings_do_not_differ() {
        let of = |all: &[(&str, &str)]| BucketServices {
            services: all.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned())).collect(),
        };
        let two = |node: &[(&str, &str)], reference: &[(&str, &str)]| ServicesOfTwo {
            node: of(node),
            reference: of(reference),
        };
        let before = two(
            &[("d/old", "1"), ("d/busy", "1"), ("d/same", "5")],
            &[("d/busy", "2"), ("d/new", "4"), ("d/same", "5")],
        );
        let after = two(
            &[("d/old", "1"), ("d/busy", "2"), ("d/same", "5")],
            &[("d/busy", "3"), ("d/new", "4"), ("d/same", "5")],
        );
        assert_eq!(differing_services(&before, &after), ["d/new", "d/old"]);
    }
}
