//! `ballast explain` over the pinned maps of a lockstep run: asked before each packet, held against what the program does.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, ensure};
use lb_common::decide::{Action, Packet, Verdict};
use lb_common::state::SourcePorts;
use lb_userspace::explain::{self, DecisionContext, Explanation, Live, PacketAtHook, Reported, Seat, Seen, Stored};

use super::{HostSide, Lockstep, Maps, bits, demanded, goes_whole, tuple};
use crate::test_run::{Hook, LoadedPrograms, Ran};

/// Where the packets are seen.
const LOOPBACK_INDEX: u32 = 1;

/// The pinned maps, opened for reading alone.
pub struct Explained(Live);

impl Explained {
    pub fn open(pins: &Path) -> Result<Self> {
        Ok(Self(Live::open(pins, pins)?))
    }
}

/// What `ballast explain` says of a packet.
pub struct Foretold<const N: usize> {
    pub verdict: Verdict<N>,
    explanation: Explanation,
}

/// The decision, and the explanation of it, which must not promise what chance decides.
fn foretell<const N: usize, S: Stored>(
    stored: &S,
    settings: DecisionContext,
    hook: Hook,
    packet: Packet<N>,
    chances: u32,
) -> Result<Foretold<N>> {
    let (verdict, _) = explain::decide(stored, settings, bits(hook), packet);
    let seat = Seat { program: seen(hook), ifindex: settings.link, reason: String::new() };
    let question = PacketAtHook { packet, port_is_assumed: false, seat, reported: Reported::default() };
    let explanation = explain::explain(stored, settings, question.clone());
    for seed in 1..=chances {
        let again = explain::explain(
            stored,
            DecisionContext { seed: settings.seed ^ (seed << 30), ..settings },
            question.clone(),
        );
        let of = |result: &explain::Explanation| (result.result.outcome, result.result.backend);
        let same = of(&again) == of(&explanation);
        ensure!(
            same || !explanation.result.deterministic,
            "promised:\n{explanation:#?}\nby another chance:\n{again:#?}"
        );
    }
    Ok(Foretold { verdict, explanation })
}

const fn seen(hook: Hook) -> Seen {
    match hook {
        Hook::PodIn => Seen::PodIn,
        Hook::PodOut => Seen::PodOut,
        Hook::BridgeIn => Seen::BridgeIn,
        Hook::NodeIn | Hook::Xdp => Seen::NodeIn,
        Hook::NodeOut => Seen::NodeOut,
    }
}

impl<const N: usize> HostSide<N>
where
    LoadedPrograms: Maps<N>,
{
    /// What `ballast explain` says of the packet; `None`: it is not asked. XDP leaves some steps to tc, and explain is about tc.
    pub(super) fn explain(&self, lockstep: &Lockstep, hook: Hook, packet: Packet<N>) -> Result<Option<Foretold<N>>> {
        let Some(explained) = lockstep.explained.as_ref().filter(|_| hook != Hook::Xdp) else { return Ok(None) };
        let memory = &self.memory;
        let settings = DecisionContext {
            now_ns: memory.now_ns,
            seed: memory.seed,
            link: LOOPBACK_INDEX,
            timeouts: memory.timeouts.with_room(),
            ports: memory.ports,
            client_key: memory.client_key,
            flow_room: memory.flow_room,
        };
        // Each question reads some tables as a whole: other chances are for every fourth packet.
        let chances = if lockstep.tally.steps.is_multiple_of(4) { 3 } else { 0 };
        let own = explained.0.settings::<N>(settings.now_ns, SourcePorts::DEFAULT);
        ensure!(own.timeouts == settings.timeouts, "the tables note other timeouts");
        foretell(&explained.0, settings, hook, packet, chances).map(Some)
    }
}

/// Holds the explanation against the verdict that it is about.
fn compare_explanation<const N: usize>(foretold: &Foretold<N>) -> Result<()> {
    let Foretold { verdict, explanation } = foretold;
    let Explanation { result, candidates, .. } = explanation;
    ensure!(result.outcome == verdict.outcome.name(), "{verdict:?}\n{explanation:#?}");
    let served = matches!(verdict.action, Action::Pass | Action::ToBackend | Action::ToClient);
    ensure!(result.served == served, "{verdict:?}\n{explanation:#?}");
    if verdict.action != Action::ToBackend || verdict.port == 0 {
        return Ok(());
    }
    let to = (verdict.address.to_vec(), verdict.port);
    let bytes = |place: SocketAddr| match place {
        SocketAddr::V4(place) => (place.ip().octets().to_vec(), place.port()),
        SocketAddr::V6(place) => (place.ip().octets().to_vec(), place.port()),
    };
    if let Some(backend) = result.backend {
        ensure!(bytes(backend) == to, "{verdict:?}\n{explanation:#?}");
    } else {
        let may_be = candidates.iter().filter(|one| one.eligible || one.last_resort);
        let is_one = may_be.map(|one| bytes(one.address)).any(|address| address == to);
        ensure!(is_one, "the backend is no candidate: {verdict:?}\n{explanation:#?}");
    }
    Ok(())
}

/// Holds what was said against what the program did: verdict, backend and rewrite show in the packet that came out.
pub fn compare<const N: usize>(hook: Hook, packet: &Packet<N>, foretold: &Foretold<N>, ran: &Ran) -> Result<()> {
    compare_explanation(foretold)?;
    let foretold = &foretold.verdict;
    // The outer header is compared with the host's verdict.
    if goes_whole(foretold) {
        return Ok(());
    }
    let (verdict, key) = demanded(hook, packet, foretold);
    ensure!(ran.verdict == verdict, "the program says {}, explain {foretold:?}", ran.verdict);
    if let Some(key) = key {
        let came = tuple(&ran.bytes);
        ensure!(came == Some(key), "out came {came:?}, explain says {key:?}");
    }
    Ok(())
}
