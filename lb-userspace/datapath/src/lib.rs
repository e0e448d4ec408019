//! The data path in the kernel: programs loaded, maps and links pinned, interfaces followed.
//!
//! [`Datapath::open`] checks the environment, takes the locks, makes the maps or takes them over, and begins to load the programs;
//! [`Datapath::follow_links`] waits for these, and attaches them to the cgroup and to the interfaces. Everything attached is pinned
//! (or, for clsact, kept by its qdisc), so traffic flows while no agent runs, and the next agent replaces programs in place.
//!
//! The files that a [`Datapath`] is made of know nothing of it. Those with a part of its `impl` import this one: `open` and `loading` start it,
//! `follow` runs it, `publish` and `faults` report, and `switch::stages` goes on with a switch.
//!
//! What a kernel must have is found out by loading; [`Feature`] names what is done without where it is missing.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod attach;
mod beside;
mod bpf_link;
mod bpffs;
mod cgroup;
mod cgroup_links;
mod cleanup;
mod clsact;
mod default_routes;
pub mod doctor;
mod error;
mod fast_path;
mod fault;
mod faults;
mod features;
mod follow;
pub mod layout;
mod links;
mod load;
mod loaded;
mod loading;
mod loads;
mod lock;
mod map_definition;
mod net;
mod node_addresses;
mod object;
mod open;
mod pins;
mod point;
mod probe;
mod program_array;
mod program_log;
mod program_pins;
mod programs;
mod publish;
mod reconciled_tables;
mod reports;
pub mod resets;
mod roles;
mod serving;
mod sets;
mod settings;
pub mod sockets;
mod source_ports;
mod sources;
mod status;
mod switch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::{mpsc, watch};

use attach::Attacher;
use links::Links;
use load::Kernel;
use loads::Loads;
use lock::AgentLock;
pub use lock::{check_alone, running_agent};
pub use net::name_of;
use node_addresses::NodeAddresses;
use pins::Pins;
use reconciled_tables::Sources;
use reports::Reports;
use switch::Switching;

pub use attach::{Attachment, How};
pub use cleanup::{Removed, RunFolder, cleanup, cleanup_after};
pub use error::DatapathError;
pub use fast_path::FastPathStatus;
pub use fault::{Auditor, Fault};
pub use features::{Feature, TcMechanism, kernel_release};
pub use load::{Constant, as_loaded};
pub use object::is_embedded;
pub use point::{Point, Role};
pub use program_log::ProgramLog;
pub use serving::Served;
pub use settings::{
    DatapathSettings, FastPath, Interfaces, MAX_MAP_ENTRIES, MIN_MAP_ENTRIES, MapSizes, PortRange, SocketLb, TcAttach,
    XdpMode,
};
pub use source_ports::of_default_start;
pub use sources::Surroundings;
pub use status::{Attached, LinkStatus, ProgramSize, Status, read_attached};

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
    settings: DatapathSettings,
    kernel: Kernel,
    attacher: Attacher,
    links: Links,
    addresses: NodeAddresses,
    /// Networks of clients, and SNAT addresses.
    sources: Sources,
    fast_path: fast_path::Switch,
    cgroup: Option<Arc<cgroup::CgroupRoot>>,
    /// Which processes are outside that root.
    outside_cgroup: Option<String>,
    /// Other tables on their way into force, or what is left of that.
    switching: Option<Switching>,
    loads: Loads,
    reports: Reports,
    surroundings: (watch::Sender<Surroundings>, watch::Receiver<Surroundings>),
    questions: (mpsc::Sender<fault::Request>, mpsc::Receiver<fault::Request>),
    _lock: AgentLock,
}

impl Datapath {
    /// The folder of the pinned maps of this agent.
    pub fn maps_dir(&self) -> PathBuf {
        self.attacher.pins().tables().to_owned()
    }

    /// What is attached where and how; changes with every change of an interface.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.reports.subscribe()
    }

    /// Takes what the links do not show: taken up at once while they are followed.
    pub fn surroundings(&self) -> watch::Sender<Surroundings> {
        self.surroundings.0.clone()
    }

    /// The programs' own log, once; `None` if its level is off.
    pub fn take_program_log(&mut self) -> Option<ProgramLog> {
        self.kernel.log.take()
    }
}
