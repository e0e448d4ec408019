//! Node ports that sockets of the node held before the service came: they hear from nobody any more, and somebody should know.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::logged_problems::LoggedProblems;
use crate::config::Settings;
use lb_datapath::sockets::{self, Holder};
use lb_model::PortKey;
use lb_model::Protocol;
use lb_plan::plan::{Desired, Frontend, FrontendKind};

/// How many are reported at most.
const MOST_TOLD: usize = 100;

/// Problems that were logged, and how loopback is served.
#[derive(Debug, Default)]
pub(super) struct HeldPorts {
    /// In IPv4 and in IPv6; false without the socket hook.
    loopback: [bool; 2],
    logged_problems: LoggedProblems,
}

impl HeldPorts {
    pub fn new(settings: &Settings) -> Self {
        let is_hooked = settings.socket_lb != lb_datapath::SocketLb::Off;
        let loopback = settings.nodeport_addresses.loopback().map(|served| served && is_hooked);
        Self { loopback, logged_problems: LoggedProblems::default() }
    }

    /// Looks at the sockets of this network namespace, if there are node ports; returns and logs what is held.
    pub fn update(&mut self, desired: &Desired) -> Vec<String> {
        let mut held = BTreeSet::new();
        if has_node_ports(desired) {
            let listed = sockets::holders(|holder| {
                if held.len() < MOST_TOLD
                    && let Some((frontend, port)) = self.held(holder, desired)
                {
                    held.insert(sentence(holder, frontend.port, port));
                }
            });
            if let Err(error) = listed {
                held.insert(format!("which sockets hold node ports is not known: {error}"));
            }
        }
        self.logged_problems.warn(held.clone());
        held.into_iter().collect()
    }

    /// The node port that a socket holds.
    fn held<'a>(&self, holder: &Holder, desired: &'a Desired) -> Option<(Frontend, &'a PortKey)> {
        let mut met = self.met(holder.at.ip()).into_iter();
        met.find_map(|address| {
            let frontend = Frontend { address, port: holder.at.port(), protocol: holder.protocol };
            let port = desired.owners.get(&frontend)?;
            let used = desired.services.get(port)?.frontends.get(&frontend)?;
            matches!(used.kind, FrontendKind::NodePort | FrontendKind::HostSocket).then_some((frontend, port))
        })
    }

    /// The addresses whose node ports a socket at this one holds.
    fn met(&self, at: IpAddr) -> Vec<IpAddr> {
        let [any4, any6] = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        if at == any6 {
            vec![any6, any4]
        } else if !at.is_loopback() {
            vec![at]
        } else if self.loopback[usize::from(at.is_ipv6())] {
            vec![if at.is_ipv4() { any4 } else { any6 }]
        } else {
            Vec::new()
        }
    }
}

/// Those of sockets come first of their family.
fn has_node_ports(desired: &Desired) -> bool {
    let families = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    families.into_iter().any(|address| {
        let first = Frontend { address, port: 0, protocol: Protocol::Tcp };
        desired.owners.range(first..).next().is_some_and(|(frontend, _)| frontend.address == address)
    })
}

fn sentence(holder: &Holder, node_port: u16, port: &PortKey) -> String {
    let Holder { at, protocol, uid } = holder;
    let at = SocketAddr::new(at.ip(), node_port);
    format!(
        "a socket of user {uid} holds {at}/{protocol}, the node port of Service {port}, whose clients it does not hear: \
         give the process another port, or the Service another node port"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_no_address_holds_the_port_at_all_of_them() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let open = HeldPorts { loopback: [true, false], ..HeldPorts::default() };
        assert_eq!(open.met(ip("::")), [ip("::"), ip("0.0.0.0")]);
        assert_eq!(open.met(ip("0.0.0.0")), [ip("0.0.0.0")]);
        assert_eq!(open.met(ip("127.0.0.9")), [ip("0.0.0.0")]);
        assert_eq!(open.met(ip("::1")), Vec::<IpAddr>::new());
        assert_eq!(open.met(ip("192.0.2.1")), [ip("192.0.2.1")]);
    }

    #[test]
    fn without_node_ports_nothing_is_asked() {
        assert!(HeldPorts::default().update(&Desired::default()).is_empty());
    }
}
