//! The stage of `connect` and `stream`: a bare side, sides with Ballast, and sides with kube-proxy, all with the same services and
//! alike in everything else.

mod arms;
pub mod ballast;
mod proxies;
pub mod side;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_load::connect_and_ask;
use lb_tests::topology::Topology;

pub use self::arms::{Arm, FAMILIES, Position, Size, Way};
use self::ballast::{Ballast, knows_fast_path};
pub use self::proxies::Mode;
use self::proxies::{Proxied, install};
use self::side::Side;

/// Services of a small cluster.
pub const FEW: usize = 10;
/// How soon a way must be open once its rules or its agent are there.
const SOON: Duration = Duration::from_mins(3);

/// All of it; dropped, everything is removed. Fields in the order in which they must end.
pub struct Stage {
    proxied: Vec<Proxied>,
    tc: Vec<(Size, Ballast)>,
    fast: Vec<(Size, Ballast)>,
    bare: Side,
    pub many: usize,
    /// What is left out, and why.
    pub left_out: Vec<String>,
    /// What the name of a way that is looked at holds.
    only: String,
    _topology: Topology,
}

impl Stage {
    pub fn new(
        agent: &Path,
        many: usize,
        with_kube_proxy: bool,
        only: Option<&str>,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let topology = Topology::new("connect")?;
        let bare = Side::new(&topology)?;
        let mut left_out = Vec::new();
        let only = only.unwrap_or_default().to_owned();
        let has_fast_path = knows_fast_path(agent)?;
        if !has_fast_path {
            left_out.push("fast path: this agent has no --fast-path".to_owned());
        }
        eprintln!("==> starting the agents");
        let start = |flags: &[&str]| -> Result<Vec<(Size, Ballast)>> {
            let sizes = [(Size::Few, FEW), (Size::Many, many)];
            let one = |(size, count)| Ok((size, Ballast::start(agent, Side::new(&topology)?, count, flags)?));
            sizes.into_iter().map(one).collect()
        };
        let tc = start(if has_fast_path { &["--fast-path=off"] } else { &[] })?;
        let fast = if has_fast_path { start(&["--fast-path=on"])? } else { Vec::new() };
        let mut wanted = Vec::new();
        if with_kube_proxy {
            wanted = vec![(Mode::Nftables, FEW), (Mode::Iptables, FEW), (Mode::IptablesNft, FEW)];
            wanted.extend([(Mode::Nftables, many), (Mode::Iptables, many)]);
            left_out.push(format!("kube-proxy iptables-nft, {many} services: its rules take longer than four minutes"));
        } else {
            left_out.push("kube-proxy: not wanted".to_owned());
        }
        wanted.retain(|(mode, services)| {
            let is_there = mode.is_there();
            if !is_there {
                let name = mode.name();
                left_out.push(format!("kube-proxy {name}, {services} services: the machine has no such program"));
            }
            is_there
        });
        eprintln!("==> letting kube-proxy make its rules");
        let proxied = install(&topology, &wanted, stop)?;
        let this = Self { proxied, tc, fast, bare, many, left_out, only, _topology: topology };
        this.wait(stop)?;
        Ok(this)
    }

    /// Waits until every arm is answered.
    fn wait(&self, stop: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        for arm in self.arms() {
            while let Err(error) = arm.client.run(|| connect_and_ask(arm.to)) {
                if stop.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                for (_, ballast) in self.tc.iter().chain(&self.fast) {
                    ballast.check()?;
                }
                ensure!(begun.elapsed() < SOON, "{}: {error}\n{}", arm.name(self.many), self.said());
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn said(&self) -> String {
        let tails = self.tc.iter().chain(&self.fast).map(|(_, ballast)| ballast.tail());
        tails.collect::<Vec<_>>().join("\n")
    }

    fn proxied(&self, mode: Mode, size: Size) -> Option<&Proxied> {
        let services = if size == Size::Few { FEW } else { self.many };
        self.proxied.iter().find(|proxied| proxied.mode == mode && proxied.services == services)
    }

    fn agent(list: &[(Size, Ballast)], size: Size) -> Option<&Side> {
        list.iter().find(|(own, _)| *own == size).map(|(_, ballast)| &ballast.side)
    }

    /// The side of a way, if it is there.
    fn side(&self, way: Way) -> Option<&Side> {
        match way {
            Way::Direct | Way::Again | Way::FromHost => Some(&self.bare),
            Way::PassingBallast | Way::Socket => Self::agent(&self.tc, Size::Many),
            Way::Tc(size) => Self::agent(&self.tc, size),
            Way::Fast(size) => Self::agent(&self.fast, size),
            Way::PassingIptables => Some(&self.proxied(Mode::Iptables, Size::Many)?.side),
            Way::KubeProxy(mode, size, _) => Some(&self.proxied(mode, size)?.side),
        }
    }

    /// The number of the service that a way goes by.
    fn number(&self, way: Way) -> Result<usize> {
        let Way::KubeProxy(mode, size, position) = way else { return Ok(0) };
        let order = &self.proxied(mode, size).context("no such rules")?.order;
        Ok(match position {
            Position::Any => 0,
            Position::First => order[0],
            Position::Middle => order[order.len() / 2],
            Position::Last => order[order.len() - 1],
        })
    }
}
