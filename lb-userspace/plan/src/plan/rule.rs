//! The rules of the plan, by name. A test that never meets a rule shows nothing of it, so a planner reports its rules to an observer.

use std::{fmt, sync::Arc};

/// A rule of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    // Whose services.
    Headless,
    ExternalName,
    OtherProxy,
    OurProxyName,
    // Which frontends.
    ClusterIp,
    NodePort,
    NodePortNowhere,
    LoadBalancerIp,
    ExternalIp,
    ExternalIpsOff,
    /// An address of a family that the service has no cluster IP of.
    NoClusterIpOfFamily,
    /// A load balancer or external IP that is an address of this node.
    NodeAddress,
    Reserved,
    /// A frontend that an older claim has.
    TakenByOlder,
    /// A frontend that is a cluster IP of another service.
    TakenByClusterIp,
    Sctp,
    Affinity,
    /// A scheduler that is not the agent's own.
    OwnScheduler,
    NoRetry,
    Weights,
    // Which endpoints.
    NotReadyPublished,
    Duplicate,
    SeveralSlices,
    OtherFamily,
    /// A slice without a port of this name.
    NoPortOfName,
    NodeHints,
    ZoneHints,
    /// A ready endpoint has no hint, others do.
    HintsIncomplete,
    HintsForOthers,
    ClusterTerminating,
    LocalReady,
    LocalTerminating,
    /// An endpoint is taken out by hand.
    Maintenance,
    /// An endpoint's active checks fail, and others serve in its place.
    Unhealthy,
    /// Those of all fail: then they serve.
    AllUnhealthy,
    RefuseWithoutEndpoint,
    DropInside,
    DropOutside,
    /// Clients inside reach all endpoints by an external frontend of policy Local.
    ShortCircuit,
    // Who may pass.
    SourceRanges,
    NoRangeOfFamily,
    NodeAllowed,
    // Addresses.
    RefuseUnserved,
    Echo,
    HealthCheck,
    HealthCheckTaken,
}

impl Rule {
    pub const ALL: [Self; 46] = [
        Self::Headless,
        Self::ExternalName,
        Self::OtherProxy,
        Self::OurProxyName,
        Self::ClusterIp,
        Self::NodePort,
        Self::NodePortNowhere,
        Self::LoadBalancerIp,
        Self::ExternalIp,
        Self::ExternalIpsOff,
        Self::NoClusterIpOfFamily,
        Self::NodeAddress,
        Self::Reserved,
        Self::TakenByOlder,
        Self::TakenByClusterIp,
        Self::Sctp,
        Self::Affinity,
        Self::OwnScheduler,
        Self::NoRetry,
        Self::Weights,
        Self::NotReadyPublished,
        Self::Duplicate,
        Self::SeveralSlices,
        Self::OtherFamily,
        Self::NoPortOfName,
        Self::NodeHints,
        Self::ZoneHints,
        Self::HintsIncomplete,
        Self::HintsForOthers,
        Self::ClusterTerminating,
        Self::LocalReady,
        Self::LocalTerminating,
        Self::Maintenance,
        Self::Unhealthy,
        Self::AllUnhealthy,
        Self::RefuseWithoutEndpoint,
        Self::DropInside,
        Self::DropOutside,
        Self::ShortCircuit,
        Self::SourceRanges,
        Self::NoRangeOfFamily,
        Self::NodeAllowed,
        Self::RefuseUnserved,
        Self::Echo,
        Self::HealthCheck,
        Self::HealthCheckTaken,
    ];
}

const _: () = {
    let mut i = 0;
    while i < Rule::ALL.len() {
        assert!(Rule::ALL[i] as usize == i, "ALL is in the order of the rules");
        i += 1;
    }
};

/// Gets each rule that decides something. The agent's planner has none; tests count the rules that they met.
#[derive(Clone, Default)]
pub struct RuleObserver(Option<Arc<dyn Fn(Rule) + Send + Sync>>);

impl RuleObserver {
    pub fn new(observe: impl Fn(Rule) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    pub(super) fn hit(&self, rule: Rule) {
        if let Some(observe) = &self.0 {
            observe(rule);
        }
    }

    pub(super) fn hit_if(&self, is_so: bool, rule: Rule) {
        if is_so {
            self.hit(rule);
        }
    }
}

impl fmt::Debug for RuleObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleObserver")
    }
}
