//! `ballast explain` over the pinned maps of a lockstep run: asked before each packet, held against what the program does.

use std::path::Path;

use anyhow::{Result, ensure};
use lb_common::decide::{Packet, Verdict};
use lb_common::state::SourcePorts;
use lb_userspace::explain::{self, Live, Settings};

use super::{FLOW_ROOM, HostSide, Lockstep, Maps, bits, demanded, frame, goes_whole};
use crate::test_run::{Hook, LoadedPrograms, Ran};

/// The pinned maps, opened for reading alone.
pub struct Explained {
    v4: Live<4>,
    v6: Live<16>,
}

impl Explained {
    pub fn open(pins: &Path) -> Result<Self> {
        Ok(Self { v4: Live::open(pins, pins)?, v6: Live::open(pins, pins)? })
    }
}

/// The family's maps.
pub trait Foretells<const N: usize> {
    fn foretell(&self, settings: Settings, hook: Hook, packet: Packet<N>) -> Verdict<N>;
}

impl Foretells<4> for Explained {
    fn foretell(&self, settings: Settings, hook: Hook, packet: Packet<4>) -> Verdict<4> {
        let Settings { now_ns, seed, client_key, .. } = settings;
        let own = self.v4.settings(now_ns, SourcePorts::DEFAULT);
        let settings = Settings { seed, client_key, flow_room: FLOW_ROOM, ..own };
        explain::decide(&self.v4, settings, bits(hook), packet).0
    }
}

impl Foretells<16> for Explained {
    fn foretell(&self, settings: Settings, hook: Hook, packet: Packet<16>) -> Verdict<16> {
        let Settings { now_ns, seed, client_key, .. } = settings;
        let own = self.v6.settings(now_ns, SourcePorts::DEFAULT);
        let settings = Settings { seed, client_key, flow_room: FLOW_ROOM, ..own };
        explain::decide(&self.v6, settings, bits(hook), packet).0
    }
}

impl<const N: usize> HostSide<N>
where
    LoadedPrograms: Maps<N>,
    Explained: Foretells<N>,
{
    /// What `ballast explain` says of the packet; `None`: it is not asked. XDP leaves some steps to tc, and explain tells of tc.
    pub(super) fn explain(&self, lockstep: &Lockstep, hook: Hook, packet: Packet<N>) -> Result<Option<Verdict<N>>> {
        let Some(explained) = lockstep.explained.as_ref().filter(|_| hook != Hook::Xdp) else { return Ok(None) };
        let memory = &self.memory;
        let settings = Settings {
            now_ns: memory.now_ns,
            seed: memory.seed,
            link: 0,
            timeouts: memory.timeouts,
            ports: memory.ports,
            client_key: memory.client_key,
            flow_room: memory.flow_room,
        };
        Ok(Some(explained.foretell(settings, hook, packet)))
    }
}

/// Holds what was said against what the program did: verdict, backend and rewrite show in the packet that came out.
pub fn compare<const N: usize>(hook: Hook, packet: &Packet<N>, foretold: &Verdict<N>, ran: &Ran) -> Result<()> {
    // The outer header is compared with the host's verdict.
    if goes_whole(foretold) {
        return Ok(());
    }
    let (verdict, key) = demanded(hook, packet, foretold);
    ensure!(ran.verdict == verdict, "the program says {}, explain {foretold:?}", ran.verdict);
    if let Some(key) = key {
        let came = frame::key(&ran.bytes);
        ensure!(came == Some(key), "out came {came:?}, explain says {key:?}");
    }
    Ok(())
}
