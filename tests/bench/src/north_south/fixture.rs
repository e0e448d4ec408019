//! The lanes side by side: plain forwarding, the least that XDP can do, kube-proxy, and Ballast at XDP and at tc.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_tests::topology::Topology;

use super::frames::FLOWS;
use super::kube::Proxied;
use super::lane::{DSR, FramePath, Lane, SNAT};
use super::proxy::{Ballast, Hook};
use super::wire::{Burst, Wire};

/// How soon all of a way's frames must arrive.
const SOON: Duration = Duration::from_mins(2);

/// All of it; dropped, everything is removed. Fields in the order in which they must end.
pub struct Fixture {
    pub wire: Wire,
    pub xdp: Ballast,
    pub tc: Ballast,
    proxied: Option<Proxied>,
    plain: Lane,
    bare: Lane,
    _topology: Topology,
}

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// XDP, without looking at anything.
    Hop,
    /// The kernel, by its routes.
    Kernel,
    KubeProxy,
    Tc,
    Xdp,
}

/// Frames on one way of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    pub name: &'static str,
    pub who: Who,
    pub path: FramePath,
    /// The arm of the kernel's that ends at the same place.
    pub plain: &'static str,
}

/// [`XDP_SNAT`] once more: what lies between both is noise.
pub const AGAIN: &str = "XDP, masquerade (the same again)";
pub const XDP_SNAT: &str = "XDP, masquerade";
pub const KUBE_PROXY: &str = "kube-proxy (nftables), masquerade";
const PLAIN: &str = "plain forwarding";
const PLAIN_HERE: &str = "plain forwarding to a pod";

const fn arm(name: &'static str, who: Who, path: FramePath) -> Arm {
    let plain = if matches!(path, FramePath::Arrival | FramePath::PlainHere) { PLAIN_HERE } else { PLAIN };
    Arm { name, who, path, plain }
}

const ARMS: [Arm; 11] = [
    arm("XDP that only sends on", Who::Hop, FramePath::Plain),
    arm(PLAIN, Who::Kernel, FramePath::Plain),
    arm(KUBE_PROXY, Who::KubeProxy, FramePath::NodePort(SNAT)),
    arm("tc, masquerade", Who::Tc, FramePath::NodePort(SNAT)),
    arm(XDP_SNAT, Who::Xdp, FramePath::NodePort(SNAT)),
    arm(AGAIN, Who::Xdp, FramePath::NodePort(SNAT)),
    arm("tc, direct server return, first node", Who::Tc, FramePath::NodePort(DSR)),
    arm("XDP, direct server return, first node", Who::Xdp, FramePath::NodePort(DSR)),
    arm(PLAIN_HERE, Who::Kernel, FramePath::PlainHere),
    arm("tc, direct server return, backend's node", Who::Tc, FramePath::Arrival),
    arm("XDP, direct server return, backend's node", Who::Xdp, FramePath::Arrival),
];

impl Fixture {
    /// Makes the lanes, and starts what serves them.
    pub fn new(object: &Path, agent: &Path, with_kube_proxy: bool) -> Result<Self> {
        let mut wire = Wire::load(object)?;
        let topology = Topology::new("outside")?;
        let mut lane = |name| Lane::new(&topology, name, &mut wire).with_context(|| format!("lane {name}"));
        let (bare, plain, tc, xdp) = (lane("bare")?, lane("plain")?, lane("tc")?, lane("xdp")?);
        let proxied = with_kube_proxy.then(|| lane("proxy")).transpose()?;
        bare.hop(&mut wire)?;
        eprintln!("==> starting the agents");
        let xdp = Ballast::start(agent, xdp, Hook::Xdp).context("the lane with XDP")?;
        let tc = Ballast::start(agent, tc, Hook::Tc).context("the lane with tc")?;
        let proxied = proxied.map(|lane| Proxied::start(&topology, lane)).transpose().context("kube-proxy")?;
        Ok(Self { wire, xdp, tc, proxied, plain, bare, _topology: topology })
    }

    /// The arms of this run.
    pub fn arms(&self) -> Vec<Arm> {
        ARMS.into_iter().filter(|arm| arm.who != Who::KubeProxy || self.proxied.is_some()).collect()
    }

    /// Frames of an arm.
    pub fn burst(&mut self, arm: &Arm, family: usize, count: u32) -> Result<Burst> {
        let lane = match (arm.who, &self.proxied) {
            (Who::Hop, _) => &self.bare,
            (Who::Kernel, _) => &self.plain,
            (Who::KubeProxy, Some(proxied)) => {
                proxied.check()?;
                &proxied.lane
            }
            (Who::KubeProxy, None) => bail!("kube-proxy does not run"),
            (Who::Tc, _) => &self.tc.lane,
            (Who::Xdp, _) => &self.xdp.lane,
        };
        lane.burst(&mut self.wire, arm.path, family, count).with_context(|| arm.name.to_owned())
    }

    /// Waits until every arm's frames arrive, all of them.
    pub fn warm_up(&mut self, stop: &AtomicBool) -> Result<()> {
        for arm in self.arms() {
            for family in 0..2 {
                let begun = Instant::now();
                loop {
                    let burst = self.burst(&arm, family, u32::from(FLOWS))?;
                    if burst.arrived == u64::from(FLOWS) {
                        break;
                    }
                    if stop.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    ensure!(
                        begun.elapsed() < SOON,
                        "{}, family {family}: {} of {FLOWS} frames arrive",
                        arm.name,
                        burst.arrived
                    );
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
        }
        Ok(())
    }
}
