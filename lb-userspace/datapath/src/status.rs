//! What is attached where and how: reported by the running agent, or read from the pins when none runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
};

use aya::maps::{HashMap, Map, MapData};
use lb_common::abi::{Link, map_name};
use serde::Serialize;

use super::{
    DatapathError,
    attach::{Attachment, How},
    bpf_link::{BpfLink, LinkFacts, LinkTarget},
    clsact,
    error::netlink_thread,
    fast_path::FastPathStatus,
    features::{Feature, TcMechanism},
    loaded::Loaded,
    net::name_of,
    pins::Pins,
    point::{Point, Role},
    serving::Served,
};

/// A loaded program, as the verifier saw it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProgramSize {
    pub name: &'static str,
    /// Instructions that the verifier walked; 0: not known.
    pub verified_instructions: u32,
    pub jited_bytes: u32,
}

impl ProgramSize {
    pub(super) fn new((name, program): (&'static str, &Loaded)) -> Self {
        Self { name, verified_instructions: program.verified_instructions, jited_bytes: program.jited_bytes }
    }
}

/// The agent's own view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub tc: TcMechanism,
    /// What the kernel lacks and is done without.
    #[serde(skip)]
    pub missing_features: Vec<Feature>,
    /// `off`, `host` or `all`.
    pub socket_lb: &'static str,
    /// Root of the cgroup hierarchy that is served; `None`: off.
    pub cgroup: Option<String>,
    /// By which others reach this node: no loopback, no link-local ones.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that no link has at the moment: they may come back.
    pub absent: BTreeSet<IpAddr>,
    /// True once every interface was looked at.
    pub synced: bool,
    /// Whether connections are not all in the tables of this agent: other map sizes or another layout.
    pub is_moving: bool,
    pub links: Vec<LinkStatus>,
    /// What could not be attached or written, and why.
    pub problems: Vec<String>,
    /// Those of them that are the node's: not one pod's link, nor one element of a table, nor XDP of a link that tc serves.
    pub node_problems: Vec<String>,
    /// What keeps external clients from being served.
    pub warnings: Vec<String>,
    /// Why no external link is known, and what to do; `None`: one is.
    pub no_external_link: Option<String>,
    /// How many source ports there are for masqueraded flows that cannot keep their client's.
    pub source_ports: u16,
    pub fast_path: FastPathStatus,
    /// The programs in the kernel, as the verifier saw them. Others are loaded when an interface needs them.
    pub programs: Vec<ProgramSize>,
}

/// An interface with programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    pub ifindex: u32,
    /// Empty: no interface of this network namespace has the index any more.
    pub name: String,
    pub role: Option<Role>,
    /// Links to the outside; `None`: any other, or not known.
    pub served: Option<Served>,
    pub programs: Vec<Attachment>,
}

/// What hangs in the kernel, read from pins and filters: works with the agent dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    pub links: Vec<LinkStatus>,
    /// Names of the socket programs on the cgroup root.
    pub sockets: Vec<String>,
}

/// Reads what is attached, in this network namespace, for the pins under `bpffs`.
pub fn read_attached(bpffs: &Path) -> Result<Attached, DatapathError> {
    let pins = Pins::under(bpffs);
    match std::fs::read_dir(pins.links()) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(DatapathError::file("read", pins.links())(error));
        }
        _ => {}
    }
    let roles = read_roles(&pins);
    let names = program_names();
    let mut links: BTreeMap<u32, Vec<Attachment>> = BTreeMap::new();
    for (path, ifindex, point, how) in pins.interfaces() {
        let facts = BpfLink::open(&path).ok().flatten().and_then(|link| link.facts().ok());
        let Some((facts, how)) = facts.zip(How::parse(&how)) else { continue };
        if holds(facts, ifindex) {
            let program = names.get(&facts.program_id).cloned().unwrap_or_default();
            links.entry(ifindex).or_default().push(Attachment { point, program, how });
        }
    }
    for (ifindex, attachment) in netlink_thread(read_filters)? {
        links.entry(ifindex).or_default().push(attachment);
    }
    let links = links.into_iter().map(|(ifindex, programs)| {
        let role = roles.get(&ifindex).copied();
        LinkStatus { ifindex, name: name_of(ifindex).unwrap_or_default(), role, served: None, programs }
    });
    let sockets = pins.cgroups().into_iter().map(|(_, program)| program);
    Ok(Attached { links: links.collect(), sockets: sockets.collect() })
}

async fn read_filters(mut handle: rtnetlink::Handle) -> Result<Vec<(u32, Attachment)>, DatapathError> {
    let mut found = Vec::new();
    for ifindex in clsact::interfaces(&mut handle).await? {
        for point in [Point::In, Point::Out] {
            if let Some(filter) = clsact::side(&mut handle, ifindex, point).await?.ours {
                found.push((ifindex, Attachment { point, program: filter.program, how: How::Clsact }));
            }
        }
    }
    Ok(found)
}

fn holds(facts: LinkFacts, interface: u32) -> bool {
    matches!(facts.target, LinkTarget::Tcx { ifindex } | LinkTarget::Xdp { ifindex } if ifindex == interface)
}

fn read_roles(pins: &Pins) -> BTreeMap<u32, Role> {
    let map = MapData::from_pin(pins.map(map_name::LINKS)).and_then(Map::from_map_data);
    let Some(links) = map.ok().and_then(|map| HashMap::<MapData, u32, Link>::try_from(map).ok()) else {
        return BTreeMap::new();
    };
    links.iter().flatten().filter_map(|(ifindex, link)| Some((ifindex, Role::from_number(link.role)?))).collect()
}

pub(super) fn program_names() -> BTreeMap<u32, String> {
    let programs = aya::programs::loaded_programs().flatten();
    programs.filter_map(|program| Some((program.id(), program.name_as_str()?.to_owned()))).collect()
}
