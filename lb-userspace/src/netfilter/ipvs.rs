//! IPVS: its virtual services, and their removal, by generic netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::{Nest, Request, Socket, big16, find, flag, is_without};

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
        let Some(mut socket) = Socket::open(libc::NETLINK_GENERIC)? else { return Ok(None) };
        let mut family = None;
        let request = Request::with_header(CONTROLLER, flag::ACK, &[GET_FAMILY, 2, 0, 0]).text(FAMILY_NAME, "IPVS");
        let asked = socket.converse(&request.bytes(), |_, _, attributes| {
            let id = find(attributes, FAMILY_ID).and_then(|id| id.try_into().ok());
            family = id.map(u16::from_ne_bytes).or(family);
        });
        match asked {
            Err(error) if is_without(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(family.map(|family| Self { socket, family })),
        }
    }

    pub fn services(&mut self) -> io::Result<Vec<VirtualService>> {
        let mut services = Vec::new();
        let request = Request::with_header(self.family, flag::DUMP, &[GET_SERVICE, VERSION, 0, 0]).bytes();
        self.socket.converse(&request, |_, _, attributes| services.extend(service(attributes)))?;
        Ok(services)
    }

    pub fn delete(&mut self, service: &VirtualService) -> io::Result<()> {
        self.socket.converse(&deletion(self.family, service).bytes(), |_, _, _| ())
    }
}

fn deletion(family: u16, service: &VirtualService) -> Request {
    let (number, address) = match service.address.ip() {
        IpAddr::V4(v4) => (libc::AF_INET, [v4.octets().as_slice(), &[0; 12]].concat()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let number = u16::try_from(number).unwrap_or_default();
    let attributes = Nest::default()
        .with(ADDRESS_FAMILY, &number.to_ne_bytes())
        .with(PROTOCOL, &service.protocol.to_ne_bytes())
        .with(ADDRESS, &address)
        .with(PORT, &service.address.port().to_be_bytes());
    Request::with_header(family, flag::ACK, &[DELETE_SERVICE, VERSION, 0, 0]).nest(SERVICE, &attributes)
}

fn service(attributes: &[u8]) -> Option<VirtualService> {
    let attributes = find(attributes, SERVICE)?;
    let native = |kind| Some(u16::from_ne_bytes(find(attributes, kind)?.try_into().ok()?));
    let address: [u8; 16] = find(attributes, ADDRESS)?.try_into().ok()?;
    let ip = match i32::from(native(ADDRESS_FAMILY)?) {
        libc::AF_INET => Ipv4Addr::new(address[0], address[1], address[2], address[3]).into(),
        _ => Ipv6Addr::from(address).into(),
    };
    let port = find(attributes, PORT).and_then(big16)?;
    Some(VirtualService { address: SocketAddr::new(ip, port), protocol: native(PROTOCOL)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Answer, read};

    fn read_service(bytes: &[u8]) -> Option<VirtualService> {
        match read(bytes)[..] {
            [Answer::Message { attributes, .. }] => service(attributes),
            ref other => panic!("{other:?}"),
        }
    }

    /// The kernel lists a service by the attributes that name it.
    #[test]
    fn a_service_is_deleted_by_the_attributes_that_it_is_listed_with() {
        for (address, protocol) in [("10.96.0.1:80", 6), ("[fd00::1]:53", 17)] {
            let wanted = VirtualService { address: address.parse().expect("an address"), protocol };
            assert_eq!(read_service(&deletion(0x1d, &wanted).bytes()), Some(wanted));
        }
        let text = VirtualService { address: "10.96.0.1:80".parse().expect("an address"), protocol: 6 }.text();
        assert_eq!(text, "TCP 10.96.0.1:80");
    }

    #[test]
    fn a_service_of_a_firewall_mark_is_none() {
        let mark = Nest::default().with(5, &[1, 0, 0, 0]);
        assert_eq!(read_service(&Request::with_header(0x1d, 0, &[1, 1, 0, 0]).nest(SERVICE, &mark).bytes()), None);
    }
}
