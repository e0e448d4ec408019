//! A probe with two different answers, and the parts of the cluster that may explain them.

use std::collections::BTreeSet;

use lb_plan::plan::FrontendKind;
use serde_json::Value;

use super::cluster::Cluster;
use super::packet::Probe;
use super::probes::Claim;
use super::settings::ProxySettings;
use super::verdict::Answer;

/// The objects that both got.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub cluster: Cluster,
    pub settings: ProxySettings,
}

/// One packet with two answers.
#[derive(Debug)]
pub struct Case<'a> {
    pub inputs: &'a Inputs,
    pub probe: Probe,
    /// Who names the frontend.
    pub claims: &'a BTreeSet<Claim>,
    pub reference: &'a Answer,
    pub subject: &'a Answer,
}

impl Case<'_> {
    /// The services that name the frontend, one for each claim.
    pub fn claimants(&self) -> impl Iterator<Item = &Value> {
        self.claims.iter().map(|claim| &self.inputs.cluster.services[claim.service])
    }

    /// The claims of services that are for this proxy to serve, of kinds that it serves, in families that they have.
    pub fn served_claims(&self) -> impl Iterator<Item = &Claim> {
        let settings = &self.inputs.settings;
        let v4 = self.probe.frontend.address.is_ipv4();
        self.claims.iter().filter(move |claim| {
            let service = &self.inputs.cluster.services[claim.service];
            let mut ips = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            settings.is_served(service)
                && claim.captured
                && (claim.kind != FrontendKind::ExternalIp || settings.external_ips)
                && ips.any(|ip| ip != "None" && ip.contains(':') != v4)
        })
    }

    /// Whether the frontend is served as this kind and no other.
    pub fn only_as(&self, kind: FrontendKind) -> bool {
        let mut kinds = self.served_claims().map(|claim| claim.kind).peekable();
        kinds.peek().is_some() && kinds.all(|found| found == kind)
    }

    /// The endpoints of the claiming services, of the frontend's family.
    pub fn endpoints(&self) -> impl Iterator<Item = &Value> {
        let v4 = self.probe.frontend.address.is_ipv4();
        let slices = self.claimants().flat_map(move |service| slices_of(&self.inputs.cluster, service, v4));
        slices.flat_map(|(_, slice)| slice["endpoints"].as_array().into_iter().flatten())
    }
}

/// The slices of a service of one family, with their places in the cluster.
pub fn slices_of<'a>(cluster: &'a Cluster, service: &Value, v4: bool) -> impl Iterator<Item = (usize, &'a Value)> {
    let family = if v4 { "IPv4" } else { "IPv6" };
    let name = service["metadata"]["name"].clone();
    let is_its = move |slice: &Value| {
        slice["addressType"] == family && slice["metadata"]["labels"]["kubernetes.io/service-name"] == name
    };
    cluster.slices.iter().enumerate().filter(move |(_, slice)| is_its(slice))
}
