//! The same programs attached by TCX and by clsact, under frames that arrive by a veth as fast as one CPU makes and takes them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, MapData};
use aya::programs::links::Link as _;
use aya::programs::links::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType, XdpMode};
use lb_tests::topology::{Namespace, Place, Topology};

use super::comparison::Comparison;
use super::programs::{Clock, Programs};
use crate::outside::frames::Segment;
use crate::outside::wire::{Wire, index};
use crate::packet::frames::ACK;
use crate::statistics::Samples;

/// Frames of a burst: a multiple of those after which the time is noted, and few enough that most bursts end before another process has
/// the CPU.
const FRAMES: u32 = 4_096;
/// Bursts of one arm before the next one's turn.
const BURSTS: usize = 5;
/// What each arm is called, its program, and whether that is attached by TCX.
const ARMS: [(&str, Option<(&str, bool)>); 7] = [
    ("TCX, a look-up", Some(("live_find", true))),
    ("clsact, a look-up", Some(("live_find", false))),
    ("TCX, nothing", Some(("nothing", true))),
    ("clsact, nothing", Some(("nothing", false))),
    ("TCX, nothing, but it might write", Some(("live_might_write", true))),
    ("no program", None),
    ("the first again", Some(("live_find", true))),
];

/// A link of each arm. Fields in the order in which they must end.
pub struct Hooks {
    _attached: Vec<Attached>,
    wire: Wire,
    clock: Array<MapData, Clock>,
    sender: Namespace,
    receiver: Namespace,
    _topology: Topology,
}

/// A program at a link: taken off in the link's own namespace.
struct Attached {
    place: Place,
    link: Option<SchedClassifierLink>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        if let Err(error) = self.place.run(|| link.detach()) {
            eprintln!("taking a program off: {error}");
        }
    }
}

impl Hooks {
    pub fn new(object: &Path, programs: &mut Programs) -> Result<Self> {
        let topology = Topology::new("alternatives")?;
        let [sender, receiver] =
            ["sender", "receiver"].map(|name| Namespace::new(&format!("{}-{name}", topology.name())));
        let (sender, receiver) = (sender?, receiver?);
        let wire = Wire::load(object)?;
        let mut attached = Vec::new();
        for (number, (arm, program)) in ARMS.into_iter().enumerate() {
            let (from, to) = (format!("from{number}"), format!("to{number}"));
            sender.ip(&format!("link add {from} type veth peer name {to} netns {}", receiver.name()))?;
            sender.ip(&format!("link set {from} up"))?;
            receiver.ip(&format!("link set {to} up"))?;
            // Frames of XDP arrive only where the other end has a program there, too.
            let index = index(receiver.place(), &to)?;
            let pass = programs.xdp_mut("live_pass")?;
            receiver.place().run(|| pass.attach_to_if_index(index, XdpMode::Driver)).context("live_pass")?;
            if let Some((name, by_tcx)) = program {
                let program = programs.tc_mut(name)?;
                let link = receiver.place().run(|| attach(program, &to, by_tcx)).context(arm)?;
                attached.push(Attached { place: receiver.place().clone(), link: Some(link) });
            }
        }
        let clock = programs.clock()?;
        Ok(Self { _attached: attached, wire, clock, sender, receiver, _topology: topology })
    }

    pub fn measure(&mut self, rounds: u32, stop: &AtomicBool) -> Result<Comparison> {
        let mut comparison = Comparison::new("a frame that arrives by a veth", "ns", &ARMS.map(|(name, _)| name));
        // The frames are another host's: the stack drops them behind the hook.
        let segment = Segment {
            from: SocketAddr::from(([10, 1, 2, 3], 0)),
            to: SocketAddr::from(([10, 96, 0, 10], 80)),
            flags: ACK,
            outer: None,
            links: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        };
        for round in 0..=rounds {
            comparison.round(round > 0, stop, |arm| {
                let times = (0..BURSTS).map(|_| self.burst(arm, segment)).collect::<Result<Samples>>()?;
                Ok(times.median())
            })?;
        }
        Ok(comparison)
    }

    /// Nanoseconds of a frame in one burst.
    fn burst(&mut self, arm: usize, segment: Segment) -> Result<f64> {
        let (from, to) = (format!("from{arm}"), format!("to{arm}"));
        self.clock.set(0, Clock::default(), 0)?;
        let burst = self.wire.burst(segment, FRAMES, (self.sender.place(), &from), (self.receiver.place(), &to))?;
        ensure!(burst.arrived >= u64::from(FRAMES), "{} of {FRAMES} frames arrived", burst.arrived);
        let clock = self.clock.get(&0, 0)?;
        ensure!(clock.frames >= u64::from(FRAMES), "{} of {FRAMES} frames were seen", clock.frames);
        // Without what the generator takes to begin and to end, which is longer than all frames.
        Ok(f64::from(u32::try_from(clock.last_ns.saturating_sub(clock.first_ns))?) / f64::from(FRAMES))
    }
}

fn attach(program: &mut SchedClassifier, link: &str, by_tcx: bool) -> Result<SchedClassifierLink> {
    let options = if by_tcx {
        TcAttachOptions::TcxOrder(LinkOrder::default())
    } else {
        qdisc_add_clsact(link)?;
        TcAttachOptions::Netlink(NlOptions::default())
    };
    let id = program.attach_with_options(link, TcAttachType::Ingress, options)?;
    Ok(program.take_link(id)?)
}
