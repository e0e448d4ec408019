//! The arms: every way to a backend that is measured, and what it is compared with.

use std::net::SocketAddr;

use lb_tests::topology::Place;

use super::ballast::service;
use super::proxies::Mode;
use super::side::direct;
use super::{FEW, Stage};

pub const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// How many services there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Few,
    Many,
}

/// Where the rule of a service stands among those of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It makes no difference.
    Any,
    First,
    Middle,
    Last,
}

/// A way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From pod to pod, on a node without any rule or program.
    Direct,
    /// The same once more: what lies between both is noise.
    Again,
    /// From pod to pod, on a node where Ballast has many services.
    PassingBallast,
    /// From pod to pod, on a node where kube-proxy has many services by iptables.
    PassingIptables,
    /// Through the cluster IP, by Ballast at tc, without the fast path.
    Tc(Size),
    /// The same with the fast path.
    Fast(Size),
    KubeProxy(Mode, Size, Position),
    /// From a process of the host to a pod, on a node without any rule or program.
    FromHost,
    /// From a process of the host through the cluster IP, translated at `connect()`.
    Socket,
}

impl Way {
    /// What it is compared with.
    pub fn reference(self) -> Self {
        if matches!(self, Self::FromHost | Self::Socket) { Self::FromHost } else { Self::Direct }
    }
}

/// A way of one family.
#[derive(Clone, Debug)]
pub struct Arm {
    pub way: Way,
    pub family: usize,
    pub client: Place,
    pub to: SocketAddr,
}

const ALL: [Way; 17] = [
    Way::Direct,
    Way::Tc(Size::Few),
    Way::Tc(Size::Many),
    Way::Fast(Size::Few),
    Way::Fast(Size::Many),
    Way::KubeProxy(Mode::Nftables, Size::Few, Position::Any),
    Way::KubeProxy(Mode::Nftables, Size::Many, Position::Any),
    Way::KubeProxy(Mode::Iptables, Size::Few, Position::Middle),
    Way::KubeProxy(Mode::Iptables, Size::Many, Position::First),
    Way::KubeProxy(Mode::Iptables, Size::Many, Position::Middle),
    Way::KubeProxy(Mode::Iptables, Size::Many, Position::Last),
    Way::KubeProxy(Mode::IptablesNft, Size::Few, Position::Any),
    Way::PassingIptables,
    Way::PassingBallast,
    Way::FromHost,
    Way::Socket,
    Way::Again,
];

/// What kube-proxy does is compared in IPv4 alone: the objects of its cluster have one family.
const SIX: [Way; 8] = [
    Way::Direct,
    Way::Tc(Size::Few),
    Way::Tc(Size::Many),
    Way::Fast(Size::Few),
    Way::Fast(Size::Many),
    Way::FromHost,
    Way::Socket,
    Way::Again,
];

impl Arm {
    /// What it is called, given the larger number of services.
    pub fn name(&self, many: usize) -> String {
        let count = |size| if size == Size::Few { FEW } else { many };
        match self.way {
            Way::Direct => "direct".to_owned(),
            Way::Again => "direct, again".to_owned(),
            Way::PassingBallast => format!("direct, node with Ballast, {many} services"),
            Way::PassingIptables => format!("direct, node with kube-proxy iptables, {many} services"),
            Way::Tc(size) => format!("tc, {} services", count(size)),
            Way::Fast(size) => format!("fast path, {} services", count(size)),
            Way::KubeProxy(mode, size, position) => {
                let position = match position {
                    Position::First if size == Size::Many => ", first rule",
                    Position::Middle if size == Size::Many => ", middle rule",
                    Position::Last if size == Size::Many => ", last rule",
                    _ => "",
                };
                format!("kube-proxy {}, {} services{position}", mode.name(), count(size))
            }
            Way::FromHost => "host, direct".to_owned(),
            Way::Socket => "host, socket hook".to_owned(),
        }
    }
}

impl Stage {
    /// The arms of this run: those whose side is there, IPv4 first.
    pub fn arms(&self) -> Vec<Arm> {
        let both = [(0, &ALL[..]), (1, &SIX[..])];
        both.into_iter().flat_map(|(family, ways)| ways.iter().filter_map(move |way| self.arm(*way, family))).collect()
    }

    fn arm(&self, way: Way, family: usize) -> Option<Arm> {
        let side = self.side(way)?;
        let is_reference = way == way.reference();
        let is_host = matches!(way, Way::FromHost | Way::Socket);
        let client = if is_host { side.host() } else { side.client() }.clone();
        let is_direct =
            matches!(way, Way::Direct | Way::Again | Way::FromHost | Way::PassingBallast | Way::PassingIptables);
        let to = if is_direct { direct(family) } else { service(family, self.number(way).ok()?) };
        let arm = Arm { way, family, client, to };
        (is_reference || arm.name(self.many).contains(&self.only)).then_some(arm)
    }
}
