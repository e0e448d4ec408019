//! Which of our annotations count: those that cost or concern others than the Service's owner need the operator's leave.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{Refusal, ServiceOptions};

/// An annotation `ballast.dev/NAME`, or a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Annotation {
    Scheduler,
    Weights,
    /// Large tables: their slots are all services'.
    MaglevSize,
    /// Direct server return: all agents watch all nodes for it.
    Mode,
    DrainPeriod,
    DrainMax,
    Retry,
    RateLimit,
    /// `check` and all `check-…`: nodes connect to what the Service names.
    Check,
}

impl Annotation {
    pub const ALL: [Self; 9] = [
        Self::Scheduler,
        Self::Weights,
        Self::MaglevSize,
        Self::Mode,
        Self::DrainPeriod,
        Self::DrainMax,
        Self::Retry,
        Self::RateLimit,
        Self::Check,
    ];

    /// Without the prefix `ballast.dev/`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Weights => "weights",
            Self::MaglevSize => "maglev-size",
            Self::Mode => "mode",
            Self::DrainPeriod => "drain-period",
            Self::DrainMax => "drain-max",
            Self::Retry => "retry",
            Self::RateLimit => "rate-limit",
            Self::Check => "check",
        }
    }

    /// Takes what the annotation says out of the options. True if it said something.
    fn remove(self, options: &mut ServiceOptions) -> bool {
        match self {
            Self::Scheduler => options.scheduler.take().is_some(),
            Self::Weights => !std::mem::take(&mut options.weights).is_empty(),
            Self::MaglevSize => options.maglev_size.take().is_some(),
            Self::Mode => options.mode.take().is_some(),
            Self::DrainPeriod => options.drain_period.take().is_some(),
            Self::DrainMax => options.drain_max.take().is_some(),
            Self::Retry => options.retry.take().is_some(),
            Self::RateLimit => options.rate_limit.take().is_some(),
            Self::Check => options.check.take().is_some(),
        }
    }
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where an annotation counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    All,
    Named(BTreeSet<String>),
}

/// The annotations that count; the others are refused by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedAnnotations(BTreeMap<Annotation, Namespaces>);

/// Those that concern the Service's own clients and backends alone.
impl Default for AllowedAnnotations {
    fn default() -> Self {
        use Annotation::{DrainMax, DrainPeriod, RateLimit, Retry, Scheduler, Weights};
        Self([Scheduler, Weights, Retry, DrainPeriod, DrainMax, RateLimit].map(|one| (one, Namespaces::All)).into())
    }
}

impl AllowedAnnotations {
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    pub fn all() -> Self {
        Self(Annotation::ALL.map(|one| (one, Namespaces::All)).into())
    }

    /// Allows the annotation in these namespaces, too.
    pub fn allow(&mut self, annotation: Annotation, namespaces: Namespaces) {
        match (self.0.get_mut(&annotation), namespaces) {
            (Some(Namespaces::All), _) => {}
            (Some(Namespaces::Named(known)), Namespaces::Named(new)) => known.extend(new),
            (_, namespaces) => drop(self.0.insert(annotation, namespaces)),
        }
    }

    /// Whether it counts in this namespace.
    pub fn allows(&self, annotation: Annotation, namespace: &str) -> bool {
        match self.0.get(&annotation) {
            Some(Namespaces::All) => true,
            Some(Namespaces::Named(names)) => names.contains(namespace),
            None => false,
        }
    }

    /// Takes out of the options of the Service `object` what does not count in its namespace, and names it.
    pub fn restrict(&self, options: &mut ServiceOptions, namespace: &str, object: &str) -> Vec<Refusal> {
        let forbidden = Annotation::ALL.into_iter().filter(|annotation| !self.allows(*annotation, namespace));
        let removed = forbidden.filter(|annotation| annotation.remove(options));
        let refusal = |annotation| {
            Refusal::new(
                object,
                format!("annotation ballast.dev/{annotation} is not allowed in namespace {namespace}"),
                format!("remove it, or have it allowed by --allowed-annotations (as {annotation}={namespace})"),
            )
        };
        removed.map(refusal).collect()
    }
}
