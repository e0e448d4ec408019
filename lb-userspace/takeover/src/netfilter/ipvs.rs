//! IPVS: its virtual services, and their removal, by generic netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::parse_u16;
use netlink_sys::protocols::NETLINK_GENERIC;

use lb_netlink::{Attributes, Message, Socket, big16, find, is_without};

/// Of include/uapi/linux/genetlink.h.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Of include/uapi/linux/ip_vs.h.
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const VERSION: u8 = 1;
const SERVICE: u16 = 1;
const ADDRESS_FAMILY: u16 = 1;
const PROTOCOL: u16 = 2;
const ADDRESS: u16 = 3;
const PORT: u16 = 4;

/// A virtual service that has an address: none of a firewall mark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualService {
    pub address: SocketAddr,
    pub protocol: u16,
}

impl VirtualService {
    pub fn text(&self) -> String {
        let protocol = match i32::from(self.protocol) {
            libc::IPPROTO_TCP => "TCP".to_owned(),
            libc::IPPROTO_UDP => "UDP".to_owned(),
            libc::IPPROTO_SCTP => "SCTP".to_owned(),
            other => other.to_string(),
        };
        format!("{protocol} {}", self.address)
    }
}

/// A connection to IPVS.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    family: u16,
}

impl Ipvs {
    /// `None`: the kernel has no IPVS, or has not loaded it.
    pub fn open() -> io::Result<Option<Self>> {
        let Some(mut socket) = Socket::open(NETLINK_GENERIC)? else { return Ok(None) };
        let attributes = Attributes::default().text(FAMILY_NAME, "IPVS");
        let question = Message { kind: CONTROLLER, header: [GET_FAMILY, 2, 0, 0], attributes };
        match socket.ask(question, |message: Message| number(&message.attributes, FAMILY_ID)) {
            Err(error) if is_without(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(families) => Ok(families.first().map(|family| Self { socket, family: *family })),
        }
    }

    pub fn services(&mut self) -> io::Result<Vec<VirtualService>> {
        let header = [GET_SERVICE, VERSION, 0, 0];
        let question = Message { kind: self.family, header, attributes: Attributes::default() };
        self.socket.list(question, |message| service(&message))
    }

    pub fn delete(&mut self, service: &VirtualService) -> io::Result<()> {
        self.socket.change(0, deletion(self.family, service))
    }
}

fn deletion(family: u16, service: &VirtualService) -> Message {
    let (number, address) = match service.address.ip() {
        IpAddr::V4(v4) => (libc::AF_INET, [v4.octets().as_slice(), &[0; 12]].concat()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let number = u16::try_from(number).unwrap_or_default();
    let service = Attributes::default()
        .with(ADDRESS_FAMILY, &number.to_ne_bytes())
        .with(PROTOCOL, &service.protocol.to_ne_bytes())
        .with(ADDRESS, &address)
        .with(PORT, &service.address.port().to_be_bytes());
    let attributes = Attributes::default().nest(SERVICE, &service);
    Message { kind: family, header: [DELETE_SERVICE, VERSION, 0, 0], attributes }
}

fn service(message: &Message) -> Option<VirtualService> {
    let attributes = find(&message.attributes, SERVICE)?;
    let address: [u8; 16] = find(attributes, ADDRESS)?.try_into().ok()?;
    let ip = match i32::from(number(attributes, ADDRESS_FAMILY)?) {
        libc::AF_INET => Ipv4Addr::new(address[0], address[1], address[2], address[3]).into(),
        _ => Ipv6Addr::from(address).into(),
    };
    let address = SocketAddr::new(ip, big16(attributes, PORT)?);
    Some(VirtualService { address, protocol: number(attributes, PROTOCOL)? })
}

/// A number in the byte order of this machine.
fn number(attributes: &[u8], kind: u16) -> Option<u16> {
    parse_u16(find(attributes, kind)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel lists a service by the attributes that name it.
    #[test]
    fn a_service_is_deleted_by_the_attributes_that_it_is_listed_with() {
        for (address, protocol) in [("10.96.0.1:80", 6), ("[fd00::1]:53", 17)] {
            let wanted = VirtualService { address: address.parse().expect("an address"), protocol };
            assert_eq!(service(&deletion(0x1d, &wanted)), Some(wanted));
        }
        let text = VirtualService { address: "10.96.0.1:80".parse().expect("an address"), protocol: 6 }.text();
        assert_eq!(text, "TCP 10.96.0.1:80");
    }

    #[test]
    fn a_service_of_a_firewall_mark_is_none() {
        let mark = Attributes::default().nest(SERVICE, &Attributes::default().with(5, &[1, 0, 0, 0]));
        assert_eq!(service(&Message { kind: 0x1d, header: [1, 1, 0, 0], attributes: mark }), None);
    }
}
