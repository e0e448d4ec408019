//! Whether there is a fast path: as was asked for, or while it skips nothing of this host.
//!
//! What is handed over past the host's stack meets neither its netfilter nor the programs and queues of its links. Asked to decide for
//! itself, the agent looks for those once a second and whenever a link changes.

mod links;
mod neighbours;
mod netfilter;
mod ports;
mod skips;
mod tracking;
mod transform;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use aya::maps::{Array, MapData};
use lb_common::abi::fast_path as open_to;
use lb_common::limits::FAST_PATH_PERMIT_S;
use rtnetlink::Handle;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::{
    DatapathError,
    attach::Attacher,
    net::Wanted,
    point::{Point, Role},
    settings::FastPath,
};

pub(super) use ports::BridgePorts;
use skips::{MOST_NAMED, Skips};
use tracking::Tracking;

/// Where the programs read which flows have a fast path, and until when ([`open_to`]).
pub(super) struct Word(pub Array<MapData, u32>);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word").finish_non_exhaustive()
    }
}

/// What was asked for, what was found, and what was written for the programs.
#[derive(Debug)]
pub(super) struct Switch {
    asked: FastPath,
    /// The folder of the tables in force.
    tables: PathBuf,
    netfilter: netfilter::Watch,
    /// Whether forwarded packets met rules at the last look: conntrack knows the connections from before.
    has_rules: bool,
    /// What would be skipped; `None`: nobody has looked yet.
    skips: Option<Skips>,
    /// Bridges whose pods take the stack all the same, and why.
    closed_bridges: Vec<String>,
    /// The kinds of flows that were written for the programs; renewed by each look.
    open: u32,
}

/// The fast path, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FastPathStatus {
    /// `auto`, `on` or `off`.
    pub asked: &'static str,
    /// Whether new flows between two pods take it.
    pub open: bool,
    /// What it would skip; looked for under `auto` alone.
    pub skips: Vec<String>,
    /// Whether new flows between a pod and another node take it.
    pub open_to_nodes: bool,
    /// What it would skip on the way from other nodes alone.
    pub skips_to_nodes: Vec<String>,
    /// Bridges whose pods take the stack all the same, and why.
    pub closed_bridges: Vec<String>,
}

impl Switch {
    /// `tables`: the folder of those in force.
    pub fn new(asked: FastPath, tables: PathBuf) -> Self {
        let netfilter = netfilter::Watch::default();
        Self { asked, tables, netfilter, has_rules: false, skips: None, closed_bridges: Vec::new(), open: 0 }
    }

    /// Tells the programs before they are attached. Under `auto` what the agent before found holds until this one has looked at everything,
    /// unless its permission has expired, or netfilter alone says otherwise.
    pub fn begin(&mut self, word: &mut Word) -> Result<(), DatapathError> {
        if self.asked == FastPath::On {
            return self.permit(word, open_to::PODS | open_to::NODES);
        }
        let open = open_to::at(word.0.get(&0, 0).map_err(aya::EbpfError::MapError)?, now_ns());
        self.has_rules = !self.netfilter.skipped().is_empty();
        if self.has_rules {
            // They may have come while no agent ran.
            let tracking = Tracking::begin(&self.tables);
            if open != 0 {
                tracking.wait();
            }
        }
        self.permit(word, if self.has_rules || self.asked == FastPath::Off { 0 } else { open })
    }

    pub fn status(&self) -> FastPathStatus {
        let Skips { all, to_nodes } = self.skips.clone().unwrap_or_default();
        FastPathStatus {
            asked: self.asked.text(),
            open: self.open & open_to::PODS != 0,
            skips: all,
            open_to_nodes: self.open & open_to::NODES != 0,
            skips_to_nodes: to_nodes,
            closed_bridges: self.closed_bridges.clone(),
        }
    }

    /// Looks for what would be skipped, and permits the fast path anew or no more; `true`: something has changed.
    pub async fn refresh(
        &mut self,
        handle: &mut Handle,
        names: &BTreeMap<u32, (String, Role)>,
        ours: &BTreeSet<u32>,
        word: &mut Word,
        ports: &mut BridgePorts,
    ) -> Result<bool, DatapathError> {
        // Without it, flows between pods of a bridge take the stack; all else is as ever.
        let error = if self.asked == FastPath::Off { None } else { ports.follow(handle, names).await.err() };
        let is_news = self.note_closed(ports);
        if self.asked != FastPath::Auto {
            return self.permit(word, self.open).map(|()| is_news);
        }
        let rules = self.netfilter.skipped();
        let had_rules = std::mem::replace(&mut self.has_rules, !rules.is_empty());
        let tracking = (self.has_rules && !had_rules).then(|| Tracking::begin(&self.tables));
        let mut skips = Skips { all: rules, to_nodes: Vec::new() };
        skips.all.extend(transform::skipped());
        skips.all.extend(error.map(|error| format!("not known: {error}")));
        if let Err(error) = links::find_skipped(handle, names, ours, &mut skips).await {
            // Who cannot look must not skip.
            skips.all.push(format!("not known: {error}"));
        }
        let open = skips.open();
        if open != self.open {
            let (pods, nodes) = (open & open_to::PODS != 0, open & open_to::NODES != 0);
            tracing::info!(pods, nodes, ?skips, "the fast path is switched");
        }
        match tracking {
            Some(tracking) => {
                tracking.waited().await;
                self.permit(word, open)?;
                tracking.go_on();
            }
            None => self.permit(word, open)?,
        }
        let before = self.skips.replace(skips);
        Ok(is_news || before != self.skips)
    }

    /// Notes which bridges' pods take the stack; `true`: others than before.
    fn note_closed(&mut self, ports: &BridgePorts) -> bool {
        let closed: Vec<String> = ports.closed().take(MOST_NAMED).cloned().collect();
        let is_news = closed != self.closed_bridges;
        if is_news {
            tracing::warn!(bridges = ?closed, "bridges whose pods take no fast path");
        }
        self.closed_bridges = closed;
        is_news
    }

    /// Permits it for some seconds: an agent that dies, or no longer looks, leaves none open.
    fn permit(&mut self, word: &mut Word, open: u32) -> Result<(), DatapathError> {
        let second = u32::try_from(now_ns() / 1_000_000_000).unwrap_or(u32::MAX);
        let until = open_to::until(open, second.saturating_add(FAST_PATH_PERMIT_S));
        word.0.set(0, until, 0).map_err(aya::EbpfError::MapError)?;
        self.open = open;
        Ok(())
    }
}

/// The programs' clock, which the permission ends by.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative: it starts at boot.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The links at whose other end packets are handed over: pairs into another namespace, with both programs.
pub(super) fn links(wanted: &BTreeMap<u32, Wanted>, attacher: &Attacher) -> BTreeSet<u32> {
    let pods = wanted.values().filter(|link| link.role == Role::Pod && link.is_veth && link.ethernet);
    let elsewhere = pods.filter(|link| link.peer_netns_id >= 0).map(|link| link.ifindex);
    elsewhere.filter(|ifindex| attacher.serves(*ifindex, &[Point::In, Point::Out])).collect()
}

/// The links by which packets of pods leave for other nodes: external ones with Ethernet and both programs.
pub(super) fn outlets(wanted: &BTreeMap<u32, Wanted>, attacher: &Attacher) -> BTreeSet<u32> {
    let external = wanted.values().filter(|link| link.role == Role::External && link.ethernet);
    let served = external.filter(|link| attacher.serves(link.ifindex, &[Point::In, Point::Out]));
    served.map(|link| link.ifindex).collect()
}
