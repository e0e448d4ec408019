//! The rules of the plan, by name, and how often each had a say: a test that never meets a rule says nothing about it.

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

/// How often each rule had a say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; Rule::ALL.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; Rule::ALL.len()])
    }
}

impl Tally {
    pub fn hit(&mut self, rule: Rule) {
        self.0[rule as usize] += 1;
    }

    pub fn hit_if(&mut self, is_so: bool, rule: Rule) {
        self.0[rule as usize] += u64::from(is_so);
    }

    /// Counts what `other` counted, too.
    pub fn add(&mut self, other: &Self) {
        for (own, others) in self.0.iter_mut().zip(other.0) {
            *own += others;
        }
    }

    pub fn of(&self, rule: Rule) -> u64 {
        self.0[rule as usize]
    }

    /// Every rule and how often it had a say, those that never had one included.
    pub fn all(&self) -> impl Iterator<Item = (Rule, u64)> + '_ {
        Rule::ALL.into_iter().map(|rule| (rule, self.of(rule)))
    }
}
