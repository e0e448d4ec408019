//! SCTP in the table: its services and servers, and which of its cells are asked for. Needs a kernel that speaks it.

use std::net::SocketAddr;

use anyhow::Result;

use super::cell::{node_port, service_number};
use super::{AddressKind, Backend, Cell, Client, Family, Network, Policy};
use crate::agent::{Port, Protocol, Service};
use crate::peers::Server;

/// Port of the services.
pub(super) const PORT: u16 = 3868;
/// Port of the backends.
const TARGET: u16 = 13_868;

impl Network {
    /// Starts the servers of SCTP.
    pub fn serve_sctp(&mut self) -> Result<()> {
        for backend in Backend::ALL {
            let Some((netns, addresses)) = self.server(backend) else { continue };
            for address in addresses.both() {
                self.servers.push(Server::sctp(&netns, backend.name(), SocketAddr::new(address, TARGET))?);
            }
        }
        Ok(())
    }

    /// The services with SCTP alone.
    pub fn sctp_services(&self) -> Vec<Service> {
        let all = Backend::ALL.into_iter().flat_map(|backend| Policy::ALL.map(|policy| (backend, policy)));
        all.map(|(backend, policy)| {
            let mut service = self.service(backend, policy);
            service.ports = vec![Port { name: "sctp", protocol: Protocol::Sctp, port: PORT, target: TARGET }];
            service.external.node_ports = vec![node_port(service_number(backend, policy), Protocol::Sctp)];
            service
        })
        .collect()
    }
}

impl Cell {
    /// The cells of SCTP that an agent on node 1 alone serves, but for pods that ask for themselves. Not among them: processes of
    /// nodes, as no socket hook knows the protocol; and services without backends, as Linux takes their refusal for a hint.
    pub fn all_of_sctp() -> Vec<Self> {
        let clients = Client::ALL.into_iter().filter(|client| !client.is_process() && *client != Client::Itself);
        let backends = Backend::ALL.into_iter().filter(|backend| *backend != Backend::None);
        let mut all = Vec::new();
        for (client, backend) in clients.flat_map(|client| backends.clone().map(move |backend| (client, backend))) {
            for (kind, policy) in AddressKind::ALL.into_iter().flat_map(|kind| Policy::ALL.map(|policy| (kind, policy)))
            {
                let cells =
                    Family::ALL.map(|family| Self { kind, protocol: Protocol::Sctp, family, policy, client, backend });
                all.extend(cells.into_iter().filter(|cell| cell.entry() == 0));
            }
        }
        all
    }
}
