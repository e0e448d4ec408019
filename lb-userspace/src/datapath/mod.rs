//! The data path in the kernel: programs loaded, maps and links pinned, interfaces followed.
//!
//! [`Datapath::open`] checks the environment, takes the locks, makes the maps or takes them over, and begins to load the programs;
//! [`Datapath::follow_links`] waits for these, and attaches them to the cgroup and to the interfaces. Everything attached is pinned
//! (or, for clsact, kept by its qdisc), so traffic flows while no agent runs, and the next agent replaces programs in place.
//!
//! What a kernel must have is found out by loading; [`Feature`] names what is done without where it is missing.

mod attach;
mod beside;
mod bpf_link;
mod bpffs;
mod cgroup;
mod cgroup_links;
mod cleanup;
mod clsact;
pub mod doctor;
mod error;
mod fast_path;
mod faults;
mod features;
mod follow;
pub mod layout;
mod load;
mod lock;
mod map_definition;
mod net;
mod object;
mod pins;
mod point;
mod probe;
mod program_array;
mod program_log;
mod program_pins;
mod programs;
mod reconciled_tables;
mod serving;
mod sets;
mod settings;
mod source_ports;
mod sources;
mod status;
mod switch;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use lb_common::abi::{Link, link_flags};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use attach::Attacher;
use load::Kernel;
use lock::AgentLock;
pub use lock::{check_alone, running_agent};
pub use net::name_of;
use pins::{Created, Pins};
use programs::{Loaded, Loading};
use reconciled_tables::Sources;
use switch::{Prepared, Switching};

pub use attach::{Attachment, How};
pub use cleanup::{Removed, cleanup, cleanup_after};
pub use error::DatapathError;
use error::netlink_thread;
pub use fast_path::FastPathStatus;
pub use faults::{Auditor, Fault};
pub use features::{Feature, TcMechanism, kernel_release};
pub use load::{Constant, as_loaded};
pub use object::is_embedded;
pub use point::{Point, Role};
pub use program_log::ProgramLog;
pub use serving::Served;
pub use settings::{FastPath, Interfaces, MapSizes, Settings, SocketLb, TcAttach, XdpMode};
pub use source_ports::of_default_start;
pub use sources::Surroundings;
pub use status::{Attached, LinkStatus, Status, read_attached};

/// The folder of the pinned maps in force under a bpf file system.
pub fn maps_dir(bpffs: &Path) -> PathBuf {
    Pins::under(bpffs).tables().to_owned()
}

/// The folder of the pinned programs, and of the maps that are pinned with them.
pub fn programs_dir(bpffs: &Path) -> PathBuf {
    Pins::under(bpffs).programs().to_owned()
}

/// The loaded programs and what they hang on. Dropping it detaches nothing.
#[derive(Debug)]
pub struct Datapath {
    settings: Settings,
    kernel: Kernel,
    attacher: Attacher,
    names: BTreeMap<u32, (String, Role)>,
    /// By which others reach this node, as last seen.
    addresses: BTreeSet<IpAddr>,
    /// Those of them that no link has at the moment.
    absent: BTreeSet<IpAddr>,
    /// What the `links` map holds.
    mapped: BTreeMap<u32, Link>,
    /// Who clients are, and who stands in for them.
    sources: Sources,
    served: BTreeMap<u32, Served>,
    /// Links that send what XDP redirects to them.
    senders: BTreeSet<u32>,
    /// Links at whose other end packets are handed over.
    hands_over: BTreeSet<u32>,
    /// Links by which packets of pods leave for other nodes, past the host's stack.
    outlets: BTreeSet<u32>,
    fast_path: fast_path::Switch,
    /// Of this start (source ports, sizes of maps), and of what keeps external clients from being served.
    warnings: (Vec<String>, Vec<String>),
    /// What failed in the last settlement, each by itself: it is tried again in the next.
    troubles: Vec<String>,
    surroundings: (watch::Sender<Surroundings>, watch::Receiver<Surroundings>),
    status: watch::Sender<Status>,
    cgroup: Option<Arc<cgroup::CgroupRoot>>,
    /// Other tables on their way into force, or what is left of that.
    switching: Option<Switching>,
    /// Until all programs are in the kernel: what this start has made, and takes back if one is refused.
    loading: Option<(Loading, Created)>,
    /// Programs that an interface asked for while the data path was running.
    later: Option<Loading>,
    /// Attachments that somebody else changed and that nobody has asked for yet.
    faults: Vec<Fault>,
    questions: (mpsc::Sender<faults::Request>, mpsc::Receiver<faults::Request>),
    _lock: AgentLock,
}

/// A loaded program, as the verifier saw it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProgramSize {
    pub name: &'static str,
    /// Instructions that the verifier walked; 0: not known.
    pub verified_instructions: u32,
    pub jited_bytes: u32,
}

impl ProgramSize {
    fn new((name, program): (&'static str, &Loaded)) -> Self {
        Self { name, verified_instructions: program.verified_instructions, jited_bytes: program.jited_bytes }
    }
}

impl Datapath {
    /// Makes the tables, or takes over those that are there: what is in them may be read and written while the programs are
    /// loaded. On an error, here or in [`Self::follow_links`], nothing new is left behind.
    pub fn open(mut settings: Settings) -> Result<Self, DatapathError> {
        if settings.programs.is_none() && !is_embedded() {
            return Err(DatapathError::NoPrograms);
        }
        features::check()?;
        let missing_features = Feature::missing();
        for feature in &missing_features {
            tracing::warn!("this kernel lacks a feature: {feature}");
        }
        if missing_features.contains(&Feature::CheckMtu) {
            settings.fast_path = FastPath::Off;
        }
        check_named(&settings)?;
        let tc = features::tc_mechanism(settings.tc_attach)?;
        let (ports, ports_warning) = source_ports::choose(settings.snat_ports, source_ports::Local::read().as_ref())?;
        let cgroup = match settings.socket_lb {
            SocketLb::Off => None,
            SocketLb::Host | SocketLb::All => Some(Arc::new(cgroup::open(settings.cgroup_root.as_deref())?)),
        };
        let pins = Pins::under(&settings.bpffs);
        beside::check(&pins)?;
        bpffs::ensure(&settings.bpffs)?;

        let mut created = Created::default();
        created.folder(pins.root())?;
        let lock = AgentLock::take(Some(&settings.run_dir), Some(pins.root()))?;
        created.folder(pins.links())?;
        created.folder(pins.programs())?;
        let elf = object::read(settings.programs.as_deref())?;
        let prepared = switch::prepare(pins, &settings, &elf, cgroup.as_deref(), &mut created)?;
        let (mut kernel, loading) = load::load(&settings, &elf, &prepared, ports, &mut created)?;
        let Prepared { pins, begun, .. } = prepared;
        begun.iter().try_for_each(|begun| begun.keep_old_programs(&mut created))?;
        let switching = Switching::of(begun, &pins);
        let (sources, senders) = (Sources::open(pins.tables())?, flagged(&kernel, link_flags::XDP_SENDS));
        let hands_over = flagged(&kernel, link_flags::FAST_PATH);
        let outlets = flagged(&kernel, link_flags::SENDS_ON);
        let mut fast_path = fast_path::Switch::new(settings.fast_path);
        fast_path.begin(&mut kernel.fast_path)?;
        let addresses = own_addresses()?;
        let status = watch::Sender::new(Status {
            addresses: addresses.clone(),
            absent: BTreeSet::new(),
            tc,
            missing_features,
            socket_lb: settings.socket_lb.text(),
            cgroup: cgroup.as_ref().map(|root| root.path.display().to_string()),
            synced: false,
            is_moving: switching.as_ref().is_some_and(Switching::moves),
            links: Vec::new(),
            problems: Vec::new(),
            node_problems: Vec::new(),
            warnings: Vec::new(),
            source_ports: ports.count,
            fast_path: fast_path.status(),
            programs: Vec::new(),
        });
        let attacher = Attacher::new(pins, tc, settings.xdp_mode);
        Ok(Self {
            settings,
            kernel,
            attacher,
            names: BTreeMap::new(),
            addresses,
            absent: BTreeSet::new(),
            mapped: BTreeMap::new(),
            sources,
            served: BTreeMap::new(),
            senders,
            hands_over,
            outlets,
            fast_path,
            warnings: (ports_warning.into_iter().collect(), Vec::new()),
            troubles: Vec::new(),
            surroundings: watch::channel(Surroundings::default()),
            status,
            cgroup,
            switching,
            loading: Some((loading, created)),
            later: None,
            faults: Vec::new(),
            questions: mpsc::channel(4),
            _lock: lock,
        })
    }

    /// The folder of the pinned maps of this agent.
    pub fn maps_dir(&self) -> PathBuf {
        self.attacher.pins().tables().to_owned()
    }

    /// What is attached where and how; changes with every change of an interface.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Takes what the links do not show: taken up at once while they are followed.
    pub fn surroundings(&self) -> watch::Sender<Surroundings> {
        self.surroundings.0.clone()
    }

    /// The programs' own log, once; `None` if its level is off.
    pub fn take_program_log(&mut self) -> Option<ProgramLog> {
        self.kernel.log.take()
    }

    /// Waits until the first programs are in the kernel, and attaches those of the sockets.
    async fn finish_loading(&mut self) -> Result<(), DatapathError> {
        let Some((mut loading, mut created)) = self.loading.take() else { return Ok(()) };
        let mut outcomes = loading.end().await?;
        if let Some(refused) = outcomes.iter().position(|(_, outcome)| outcome.is_err()) {
            return outcomes.swap_remove(refused).1.map(drop);
        }
        self.kernel.programs.add(outcomes, &self.kernel.program_pins, Instant::now())?;
        self.keep_for_gates()?;
        match &self.cgroup {
            // Replaced when the tables are in force that their programs know.
            Some(_) if self.is_moving() => {}
            Some(root) => {
                cgroup_links::attach(root, &self.kernel.programs, self.attacher.pins(), &mut created)?;
                cgroup_links::remove_second(self.attacher.pins())?;
            }
            None => cgroup_links::detach(self.attacher.pins())?,
        }
        created.keep();
        Ok(())
    }

    /// Begins to load the programs that interfaces have asked for, if none are being loaded.
    fn load_missing(&mut self) -> Result<(), DatapathError> {
        let missing = self.attacher.take_missing();
        if self.later.is_some() {
            // Asked for again as soon as these are loaded.
            return Ok(());
        }
        let due = self.kernel.programs.due(missing, Instant::now());
        if !due.is_empty() {
            tracing::info!(programs = ?due, "an interface needs programs that are not loaded yet");
            let recipe = self.kernel.recipe.clone();
            self.later = Some(Loading::begin(due, self.kernel.program_pins.clone(), move || recipe.object())?);
        }
        Ok(())
    }

    /// Takes over the programs that were loaded later, or why they were not.
    fn add_later(&mut self, loading: &Loading, loaded: Result<programs::Outcomes, DatapathError>) {
        let now = Instant::now();
        let added = loaded.and_then(|outcomes| self.kernel.programs.add(outcomes, &self.kernel.program_pins, now));
        let added = added.and_then(|()| self.keep_for_gates());
        if let Err(error) = added {
            loading.names.iter().for_each(|name| self.kernel.programs.refuse(name, &error, now));
        }
    }

    fn publish(&self, trouble: Option<&DatapathError>) {
        let mut links: BTreeMap<u32, LinkStatus> = BTreeMap::new();
        for ((ifindex, _), attachment) in &self.attacher.attached {
            let link = links.entry(*ifindex).or_insert_with(|| {
                let (name, role) = self.names.get(ifindex).cloned().unzip();
                let served = self.served.get(ifindex).cloned();
                LinkStatus { ifindex: *ifindex, name: name.unwrap_or_default(), role, served, programs: Vec::new() }
            });
            link.programs.push(attachment.clone());
        }
        let trouble = trouble.map(ToString::to_string);
        let is_pods = |ifindex: &u32| self.names.get(ifindex).is_some_and(|(_, role)| *role == point::Role::Pod);
        let of_node = self.attacher.problems.iter().filter(|((ifindex, _), _)| !is_pods(ifindex));
        let node_problems: Vec<String> = trouble.iter().chain(of_node.map(|(_, problem)| problem)).cloned().collect();
        let all = trouble.iter().chain(self.attacher.problems.values()).chain(&self.troubles);
        let problems = all.cloned().collect();
        self.status.send_if_modified(|status| {
            let synced = status.synced || (trouble.is_none() && self.later.is_none());
            let programs = self.kernel.programs.iter().map(ProgramSize::new).collect();
            let (addresses, absent) = (self.addresses.clone(), self.absent.clone());
            let links = links.into_values().collect();
            let is_moving = self.is_moving();
            let moving = is_moving.then(|| "connections are moving to other tables (map sizes or layout)".to_owned());
            let warnings = self.warnings.0.iter().chain(&self.warnings.1).cloned().chain(moving).collect();
            let fast_path = self.fast_path.status();
            let new = Status {
                addresses,
                absent,
                synced,
                is_moving,
                links,
                problems,
                node_problems,
                warnings,
                fast_path,
                programs,
                ..status.clone()
            };
            let changed = *status != new;
            *status = new;
            changed
        });
    }
}

/// Links to which an agent before this one gave the flag.
fn flagged(kernel: &Kernel, flag: u32) -> BTreeSet<u32> {
    let links = kernel.links.iter().flatten();
    links.filter(|(_, link)| link.flags & flag != 0).map(|(ifindex, _)| ifindex).collect()
}

/// The addresses at this moment: the plan must not begin without them, or it would take every node port away.
fn own_addresses() -> Result<BTreeSet<IpAddr>, DatapathError> {
    let found = nix::ifaddrs::getifaddrs().map_err(std::io::Error::from);
    let found = found.map_err(DatapathError::kernel("read the addresses of the interfaces"))?;
    let found = found.filter(|interface| net::carries_node_addresses(&interface.interface_name));
    let addresses = found.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    Ok(addresses.filter(|address| net::is_node_address(*address)).collect())
}

fn check_named(settings: &Settings) -> Result<(), DatapathError> {
    let flags = [("pod-interfaces", &settings.pod_interfaces), ("external-interfaces", &settings.external_interfaces)];
    for (flag, selector) in flags {
        for name in settings::literals(selector) {
            if nix::net::if_::if_nametoindex(name).is_err() {
                return Err(DatapathError::NoInterface { flag, name: name.to_owned() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_interface_must_be_there() {
        let settings =
            Settings { external_interfaces: "lo,nosuch0".parse().expect("well-formed"), ..Settings::default() };
        let error = check_named(&settings).expect_err("not there").to_string();
        assert!(error.contains("--external-interfaces") && error.contains("nosuch0"), "{error}");
        let globs = Settings { pod_interfaces: "nosuch*".parse().expect("well-formed"), ..Settings::default() };
        assert!(check_named(&globs).is_ok());
    }
}
