//! Ballast's side of the comparison: the objects through conversion, planner and tables, and the tables' decision on a packet.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use lb_common::abi::{backend_flags, frontend_kind, service_flags, vip_flags};
use lb_model::{Family, Monotonic, Node, Snapshot};
use lb_objects::convert;
use lb_plan::apply::{MemoryStore, Programmer};
use lb_plan::plan::{BackendId, Desired, FrontendKind, Marks, NodeFacts, PlanSettings, Planner};

use super::case::Inputs;
use super::node;
use super::packet::{Position, Probe};
use super::verdict::{Answer, Fate};

/// What a plan is made of.
struct PlanInput {
    snapshot: Snapshot,
    facts: NodeFacts,
    settings: PlanSettings,
}

fn plan_input(inputs: &Inputs, zone: Option<&str>) -> Result<PlanInput> {
    let Inputs { cluster, settings } = inputs;
    let mut snapshot = Snapshot { revision: 1, node: Some(Arc::new(this_node(zone)?)), ..Snapshot::default() };
    for object in &cluster.services {
        let service = serde_json::from_value(object.clone()).context("a Service")?;
        if let Some(service) = convert::service(&service).object {
            snapshot.services.insert(service.name.clone(), Arc::new(service));
        }
    }
    for object in &cluster.slices {
        let slice = serde_json::from_value(object.clone()).context("an EndpointSlice")?;
        if let Some(slice) = convert::slice(&slice).object {
            snapshot.slices.insert(slice.key(), Arc::new(slice));
        }
    }
    let facts = NodeFacts {
        addresses: node::addresses().clone(),
        absent: std::collections::BTreeSet::new(),
        networks: std::collections::BTreeSet::new(),
        reserved: settings.reserved.clone(),
        marks: Marks::default(),
        mtu: [None; 2],
    };
    let settings = PlanSettings {
        node_name: Some(node::NAME.to_owned()),
        nodeport_addresses: settings.nodeport_addresses.clone(),
        external_ips: settings.external_ips,
        service_proxy_name: settings.proxy_name.map(str::to_owned),
        ..PlanSettings::default()
    };
    Ok(PlanInput { snapshot, facts, settings })
}

fn this_node(zone: Option<&str>) -> Result<Node> {
    let object = serde_json::from_value(node::object(zone)).context("a Node")?;
    convert::node(&object).object.context("the Node was refused")
}

/// Ballast's plan for a cluster, and the tables that it writes.
#[derive(Debug)]
pub struct Ballast {
    pub planner: Planner,
    pub tables: MemoryStore,
}

/// What Ballast makes of a cluster.
pub fn inputs(inputs: &Inputs, zone: Option<&str>) -> Result<Ballast> {
    let input = plan_input(inputs, zone)?;
    let now = Monotonic::from_nanos(1);
    let mut programmer = Programmer::restore(MemoryStore::roomy(), input.settings.clone(), now)?;
    let report = programmer.sync(&input.snapshot, &input.facts, now);
    ensure!(report.failures.is_empty(), "the tables could not be written: {:?}", report.failures);
    Ok(Ballast { planner: planned(&input), tables: programmer.into_store() })
}

/// What Ballast would do with a packet, given these objects.
pub fn fate_if_told(inputs: &Inputs, zone: Option<&str>, probe: &Probe) -> Result<Answer> {
    Ok(fate(planned(&plan_input(inputs, zone)?).desired(), probe))
}

fn planned(input: &PlanInput) -> Planner {
    let mut planner = Planner::new(input.settings.clone());
    planner.update(&input.snapshot, &input.facts);
    planner
}

/// What becomes of a packet by this plan.
pub fn fate(desired: &Desired, probe: &Probe) -> Answer {
    let frontend = probe.frontend;
    let Some((service, uses)) = desired
        .owners
        .get(&frontend)
        .and_then(|key| desired.services.get(key))
        .and_then(|service| service.frontends.get(&frontend).map(|uses| (service, uses)))
    else {
        return unserved(probe, desired.vips.get(&frontend.address).map(|vip| vip.flags));
    };
    let inside = probe.client.position.is_inside();
    let set = if inside { uses.inside } else { uses.outside };
    let of_family = |address: &SocketAddr| address.is_ipv4() == frontend.address.is_ipv4();
    let serving = service.endpoints.iter().filter(|(address, endpoint)| of_family(address) && endpoint.is_in(set));
    let endpoints = serving.map(|(address, endpoint)| (*address, endpoint.local || endpoint.own_address)).collect();
    let admitted = service.sources.iter().any(|range| range.contains(&probe.client.address));
    let is_cluster_ip = uses.kind == FrontendKind::ClusterIp;
    served(probe, (uses.flags, is_cluster_ip), admitted, &endpoints, service.affinity_timeout_s)
}

/// What becomes of a packet by these tables.
pub fn fate_by_tables(tables: &MemoryStore, probe: &Probe) -> Result<Answer> {
    let frontend = probe.frontend;
    let Some(entry) = tables.frontends.get(&frontend) else {
        return Ok(unserved(probe, tables.vips.get(&frontend.address).map(|vip| vip.flags)));
    };
    let inside = probe.client.position.is_inside();
    let (base, count) =
        if inside { (entry.slot_base, entry.slot_count) } else { (entry.external_base, entry.external_count) };
    let backend = |position: u32| -> Result<(SocketAddr, bool)> {
        let slot = tables.slots.get(&position).with_context(|| format!("{frontend}: no slot {position}"))?;
        let id = BackendId { family: Family::of(frontend.address), id: slot.backend };
        let backend = tables.backends.get(&id).with_context(|| format!("{frontend}: no backend {id:?}"))?;
        Ok((backend.address, backend.flags & backend_flags::LOCAL != 0))
    };
    let endpoints = (base..base + count).map(backend).collect::<Result<_>>()?;
    let mut sources = tables.sources.keys().filter(|(service, _)| *service == entry.id);
    let admitted = sources.any(|(_, range)| range.contains(&probe.client.address));
    let is_cluster_ip = entry.kind == frontend_kind::CLUSTER_IP;
    Ok(served(probe, (entry.flags, is_cluster_ip), admitted, &endpoints, entry.affinity_timeout_s))
}

/// From the wire nothing that is sent to an address of services goes on.
fn unserved(probe: &Probe, vip: Option<u32>) -> Answer {
    let from_wire = !probe.client.position.is_inside();
    let refuses = vip.is_some_and(|flags| from_wire || flags & vip_flags::REFUSE_UNSERVED != 0);
    Answer::plain(if refuses { Fate::Rejected } else { Fate::Passed })
}

/// The frontend is there, with these flags, and perhaps a cluster IP; `admitted`: the client is in a source range; endpoints, and
/// whether they are on this node.
fn served(
    probe: &Probe,
    (flags, is_cluster_ip): (u8, bool),
    admitted: bool,
    endpoints: &BTreeSet<(SocketAddr, bool)>,
    affinity_s: u32,
) -> Answer {
    let is = |flag: u8| flags & flag != 0;
    let position = probe.client.position;
    let admitted = admitted || (position == Position::Node && is(service_flags::NODE_ALLOWED));
    if is(service_flags::SOURCE_RANGES) && !admitted {
        return Answer::plain(Fate::Dropped);
    }
    if !endpoints.is_empty() {
        // As the programs have it: a cluster IP shows none but the node's own processes their clients.
        let is_masqueraded = |(address, local): &&(SocketAddr, bool)| {
            let shown = *local && (!is_cluster_ip || node::addresses().contains(&address.ip()));
            position == Position::Outside && !shown
        };
        let masqueraded = endpoints.iter().filter(is_masqueraded).map(|(address, _)| *address).collect();
        let fate = Fate::Served(endpoints.iter().map(|(address, _)| *address).collect());
        return Answer { fate, affinity_s: (affinity_s > 0).then_some(affinity_s), masqueraded };
    }
    let drop = if position.is_inside() { service_flags::DROP_IF_EMPTY } else { service_flags::DROP_OUTSIDE_IF_EMPTY };
    Answer::plain(if is(drop) { Fate::Dropped } else { Fate::Rejected })
}
