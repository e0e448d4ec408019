//! Whether there is a fast path: as was asked for, or while it skips nothing of this host.
//!
//! What is handed over past the host's stack meets neither its netfilter nor the programs and queues of its links. Asked to decide for
//! itself, the agent looks for those once a second and whenever a link changes.

mod links;
mod netfilter;
mod ports;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use aya::maps::{Array, MapData};
use rtnetlink::Handle;
use serde::Serialize;

use super::{
    DatapathError,
    attach::Attacher,
    net::Wanted,
    point::{Point, Role},
    settings::FastPath,
};

pub(super) use ports::BridgePorts;

/// How many things that would be skipped are named.
const MOST_NAMED: usize = 8;

/// Where the programs read whether there is a fast path at this moment.
pub(super) struct Word(pub Array<MapData, u32>);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word").finish_non_exhaustive()
    }
}

/// What was asked for, what was found, and what the programs were told.
#[derive(Debug)]
pub(super) struct Switch {
    asked: FastPath,
    netfilter: netfilter::Watch,
    /// What would be skipped; `None`: nobody has looked yet.
    skips: Option<Vec<String>>,
    open: bool,
}

/// The fast path, as `status` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FastPathStatus {
    /// `auto`, `on` or `off`.
    pub asked: &'static str,
    /// Whether new flows between two pods take it.
    pub open: bool,
    /// What it would skip, or skips; looked for under `auto` alone.
    pub skips: Vec<String>,
}

impl Switch {
    pub fn new(asked: FastPath) -> Self {
        Self { asked, netfilter: netfilter::Watch::default(), skips: None, open: false }
    }

    /// Tells the programs before they are attached. Under `auto` what the agent before found holds until this one has looked at everything,
    /// unless netfilter alone says otherwise.
    pub fn begin(&mut self, word: &mut Word) -> Result<(), DatapathError> {
        match self.asked {
            FastPath::Auto => {
                self.open = word.0.get(&0, 0).map_err(aya::EbpfError::MapError)? != 0;
                if self.open && !self.netfilter.look().is_empty() { self.set(word, false) } else { Ok(()) }
            }
            FastPath::On => self.set(word, true),
            FastPath::Off => self.set(word, false),
        }
    }

    pub fn status(&self) -> FastPathStatus {
        let skips = self.skips.clone().unwrap_or_default();
        FastPathStatus { asked: self.asked.text(), open: self.open, skips }
    }

    /// Looks for what would be skipped and tells the programs; `true`: something has changed.
    pub async fn look(
        &mut self,
        handle: &mut Handle,
        names: &BTreeMap<u32, (String, Role)>,
        ours: &BTreeSet<u32>,
        word: &mut Word,
        ports: &mut BridgePorts,
    ) -> Result<bool, DatapathError> {
        // Without it, flows between pods of a bridge take the stack; all else is as ever.
        let error = if self.asked == FastPath::Off { None } else { ports.follow(handle, names).await.err() };
        if self.asked != FastPath::Auto {
            return Ok(false);
        }
        let mut skips = self.netfilter.look();
        skips.extend(error.map(|error| format!("not known: {error}")));
        match links::look(handle, names, ours).await {
            Ok(found) => skips.extend(found),
            // Who cannot look must not skip.
            Err(error) => skips.push(format!("not known: {error}")),
        }
        skips.truncate(MOST_NAMED);
        let open = skips.is_empty();
        if self.skips.as_ref() == Some(&skips) {
            return Ok(false);
        }
        if open != self.open {
            tracing::info!(open, ?skips, "the fast path is switched");
        }
        self.set(word, open)?;
        let before = self.skips.replace(skips);
        Ok(before != self.skips)
    }

    fn set(&mut self, word: &mut Word, open: bool) -> Result<(), DatapathError> {
        word.0.set(0, u32::from(open), 0).map_err(aya::EbpfError::MapError)?;
        self.open = open;
        Ok(())
    }
}

/// The links at whose other end packets are handed over: pairs into another namespace, with both programs.
pub(super) fn links(wanted: &BTreeMap<u32, Wanted>, attacher: &Attacher) -> BTreeSet<u32> {
    let pods = wanted.values().filter(|link| link.role == Role::Pod && link.is_veth && link.ethernet);
    let elsewhere = pods.filter(|link| link.peer_netns_id >= 0).map(|link| link.ifindex);
    elsewhere.filter(|ifindex| attacher.serves(*ifindex, &[Point::In, Point::Out])).collect()
}
