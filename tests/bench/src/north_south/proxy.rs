//! What serves a lane: Ballast's agent, whose programs are run by hand.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::maps::MapData;
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, Xdp, loaded_programs};
use aya_obj::programs::xdp::XdpAttachType;
use lb_tests::agent::{Endpoint, External, Manifest, Port, Protocol, Service};
use lb_tests::cluster::Process;
use lb_tests::topology::Addresses;

use super::frames::{FIRST_PORT, FLOWS, Segment, ends};
use super::lane::{BACKEND4, BACKEND6, DSR, FramePath, HERE, Lane, PEERS, SNAT, TARGET};
use crate::packet::frames::{ACK, SYN};
use crate::packet::runner::{Ran, run_with};

/// How soon an agent must serve.
const SOON: Duration = Duration::from_mins(2);
/// How often it is asked.
const TICK: Duration = Duration::from_millis(200);

/// By which of Ballast's programs packets from outside are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Xdp,
    Tc,
}

/// A program that frames from outside go through.
pub enum Program {
    Xdp(Xdp),
    Tc(SchedClassifier),
}

/// An agent on a lane, and its programs. Fields in the order in which they must end.
pub struct Ballast {
    pub from_outside: Program,
    node_in: SchedClassifier,
    node_out: SchedClassifier,
    agent: Process,
    pub lane: Lane,
}

/// The services of all lanes: masquerade and direct server return towards a backend elsewhere, and one whose backend is here.
fn manifest(lane: &Lane) -> Manifest {
    let elsewhere = Endpoint::ready(Addresses { v4: BACKEND4, v6: BACKEND6 }).on("elsewhere");
    let here = Endpoint::ready(lane.pod().addresses()).on(&lane.node.node_name());
    let service = |name, last, node_port, endpoint: &Endpoint| {
        let mut service = Service::standard(name, last, vec![endpoint.clone()]);
        service.ports = vec![Port { name: "http", protocol: Protocol::Tcp, port: 80, target: TARGET }];
        service.with(External { node_ports: vec![node_port], ..External::default() })
    };
    Manifest::of([
        service("snat", 80, SNAT, &elsewhere),
        service("dsr", 81, DSR, &elsewhere).annotated("mode", "dsr"),
        service("here", 82, HERE, &here).annotated("mode", "dsr"),
    ])
}

impl Ballast {
    pub fn start(agent: &Path, lane: Lane, hook: Hook) -> Result<Self> {
        let node = &lane.node;
        let folder = node.run_dir().join("manifest");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("services.yaml"), manifest(&lane).yaml())?;
        let mut command = Command::new(agent);
        command.arg("agent").arg(format!("--source=file={}", folder.display()));
        command.arg(format!("--node-name={}", node.node_name())).arg("--cgroup-root").arg(node.cgroup());
        command.arg("--bpffs").arg(node.bpffs()).arg("--run-dir").arg(node.run_dir());
        command.arg(format!("--dsr-peers={PEERS}")).arg("--external-interfaces=lan0,far0");
        command.arg(if hook == Hook::Xdp { "--xdp-mode=native" } else { "--xdp-mode=off" });
        let process = Process::start(command, &node.run_dir().join("agent.log"), Some(node.netns()))?;
        let begun = Instant::now();
        let (from_outside, node_in, node_out) = loop {
            process.check()?;
            match programs(node.bpffs(), hook) {
                Ok(found) => break found,
                Err(error) if begun.elapsed() > SOON => {
                    return Err(error).with_context(|| format!("not within {SOON:?}; it said:\n{}", process.tail()));
                }
                Err(_) => std::thread::sleep(TICK),
            }
        };
        let this = Self { from_outside, node_in, node_out, agent: process, lane };
        while let Err(error) = this.open_all() {
            ensure!(begun.elapsed() < SOON, "{error:#}, not within {SOON:?}; it said:\n{}", this.agent.tail());
            std::thread::sleep(TICK);
        }
        Ok(this)
    }

    /// Makes the known connections of all ways.
    fn open_all(&self) -> Result<()> {
        for path in [FramePath::NodePort(SNAT), FramePath::NodePort(DSR), FramePath::Arrival] {
            for family in 0..2 {
                for port in FIRST_PORT..FIRST_PORT + FLOWS {
                    self.open(path, family, port).with_context(|| format!("{path:?}, family {family}, port {port}"))?;
                }
            }
        }
        Ok(())
    }

    /// SYN, SYN+ACK where it comes by here, ACK.
    fn open(&self, path: FramePath, family: usize, port: u16) -> Result<()> {
        let segment = self.lane.segment(path, family).at_port(port);
        let sent = self.changed(Segment { flags: SYN, ..segment })?;
        if path != FramePath::NodePort(DSR) {
            let seen = if path == FramePath::Arrival { segment.from } else { ends(&sent.bytes)?[0] };
            let reply = self.lane.answer(path, family, seen);
            let ran = self.answered(path, &Segment { flags: SYN | ACK, ..reply })?;
            ensure!(ran.bytes != (Segment { flags: SYN | ACK, ..reply }).bytes()?, "the answer is left alone");
        }
        // XDP leaves the segment that opens the flow to tc.
        if self.changed(segment).is_err() {
            let (ifindex, bytes) = (self.index("lan0")?, segment.bytes()?);
            self.within(|| run_tc(&self.node_in, ifindex, &bytes))?;
        }
        self.changed(segment).map(drop)
    }

    /// What the backend answers to this flow: to the client, or to its SNAT address.
    pub fn reply(&self, path: FramePath, family: usize, port: u16) -> Result<Segment> {
        let segment = self.lane.segment(path, family).at_port(port);
        let seen = if path == FramePath::Arrival { segment.from } else { ends(&self.changed(segment)?.bytes)?[0] };
        Ok(self.lane.answer(path, family, seen))
    }

    fn changed(&self, segment: Segment) -> Result<Ran> {
        let bytes = segment.bytes()?;
        let ran = self.run("lan0", &bytes)?;
        ensure!(ran.bytes != bytes, "the packet is left alone (verdict {})", ran.verdict);
        Ok(ran)
    }

    /// What the backend's segment meets: on its way out, if the backend is here.
    fn answered(&self, path: FramePath, segment: &Segment) -> Result<Ran> {
        let bytes = segment.bytes()?;
        if path == FramePath::Arrival {
            return self.within(|| crate::packet::runner::run(&self.node_out, &bytes));
        }
        self.run("far0", &bytes)
    }

    fn run(&self, link: &str, bytes: &[u8]) -> Result<Ran> {
        let ifindex = self.index(link)?;
        self.within(|| self.from_outside.run(ifindex, bytes))
    }

    pub fn index(&self, link: &str) -> Result<u32> {
        let name = CString::new(link)?;
        // SAFETY: a string that ends with a zero and lives across the call.
        let ifindex = self.within(|| unsafe { libc::if_nametoindex(name.as_ptr()) });
        ensure!(ifindex != 0, "no link {link}");
        Ok(ifindex)
    }

    /// Where the frames must be run: routes and neighbours are looked up there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.lane.node.namespace().netns().run(work)
    }
}

impl Program {
    /// Runs it once on a frame that arrives by this link of the thread's namespace.
    pub fn run(&self, ifindex: u32, frame: &[u8]) -> Result<Ran> {
        match self {
            Self::Xdp(program) => run_xdp(program, ifindex, frame),
            Self::Tc(program) => run_tc(program, ifindex, frame),
        }
    }
}

/// Runs a tc program once on a frame that arrives by this link of the thread's namespace.
fn run_tc(program: &SchedClassifier, ifindex: u32, frame: &[u8]) -> Result<Ran> {
    // `struct __sk_buff`: the link is its eleventh word, all before it zero.
    let context: Vec<u8> = (0..11).flat_map(|at| if at == 10 { ifindex } else { 0 }.to_ne_bytes()).collect();
    run_with(|options| Ok(program.test_run(TestRunOptions { ctx_in: Some(&context), ..options })?), frame)
}

/// Runs an XDP program once on a frame that arrives by this link of the thread's namespace.
pub fn run_xdp(program: &Xdp, ifindex: u32, frame: &[u8]) -> Result<Ran> {
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [0, u32::try_from(frame.len())?, 0, ifindex, 0, 0].map(u32::to_ne_bytes).concat();
    run_with(|options| Ok(program.test_run(TestRunOptions { ctx_in: Some(&context), ..options })?), frame)
}

/// The programs that use the maps pinned there: that for packets from outside, tc's for the same, and tc's for those that leave.
fn programs(bpffs: &Path, hook: Hook) -> Result<(Program, SchedClassifier, SchedClassifier)> {
    let map = MapData::from_pin(bpffs.join("ballast/tables/flows4")).context("no map flows4 is pinned yet")?;
    let id = map.info()?.id();
    let find = |wanted: &str| {
        let loaded = loaded_programs().filter_map(Result::ok);
        let mut ours = loaded.filter(|info| info.map_ids().ok().flatten().is_some_and(|ids| ids.contains(&id)));
        ours.find(|info| info.name_as_str() == Some(wanted)).with_context(|| format!("{wanted} is not loaded yet"))
    };
    let tc = |name: &'static str| anyhow::Ok(SchedClassifier::from_program_info(find(name)?, name.into())?);
    let from_outside = match hook {
        Hook::Xdp => {
            Program::Xdp(Xdp::from_program_info(find("xdp_node")?, "xdp_node".into(), XdpAttachType::Interface)?)
        }
        Hook::Tc => Program::Tc(tc("node_in")?),
    };
    Ok((from_outside, tc("node_in")?, tc("node_out")?))
}
