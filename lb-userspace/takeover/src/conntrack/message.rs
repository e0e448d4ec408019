//! Messages of ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_common::abi::{SCTP, TCP, UDP};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::{Entry, Family, NewEntry, Tuple};
use lb_netlink::{Attributes, Message, big16, big32, find};

/// What [`list`] is for.
pub(super) const LIST: &str = "listing connections";
/// Flags of [`insert`].
pub(super) const INSERT: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// Flag of [`insert`]: an entry that is there is changed.
pub(super) const PUT: u16 = NLM_F_CREATE;

const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

/// Attributes of a connection.
mod attribute {
    pub const TUPLE_ORIGINAL: u16 = 1;
    pub const TUPLE_REPLY: u16 = 2;
    pub const STATUS: u16 = 3;
    pub const PROTOCOL_INFO: u16 = 4;
    pub const NAT_SOURCE: u16 = 6;
    pub const TIMEOUT: u16 = 7;
    pub const NAT_DESTINATION: u16 = 13;
    pub const ZONE: u16 = 18;
    pub const STATUS_MASK: u16 = 26;
}

/// Attributes of a tuple.
mod tuple {
    pub const ADDRESSES: u16 = 1;
    pub const PROTOCOL: u16 = 2;
    pub const ZONE: u16 = 3;
    /// In the addresses: of IPv4, then of IPv6.
    pub const SRC: [u16; 2] = [1, 3];
    pub const DST: [u16; 2] = [2, 4];
    /// In the protocol.
    pub const NUMBER: u16 = 1;
    pub const SRC_PORT: u16 = 2;
    pub const DST_PORT: u16 = 3;
}

/// Attributes of NAT.
mod nat {
    /// The least address, of IPv4 and of IPv6.
    pub const FIRST: [u16; 2] = [1, 4];
    pub const LAST: [u16; 2] = [2, 5];
    pub const PORTS: u16 = 3;
    pub const FIRST_PORT: u16 = 1;
    pub const LAST_PORT: u16 = 2;
}

/// Attributes of what a protocol has of its own: the same for TCP and SCTP, as far as they are used.
mod info {
    pub const TCP: u16 = 1;
    pub const SCTP: u16 = 3;
    pub const STATE: u16 = 1;
    /// TCP: flags and a mask of them, of each direction.
    pub const FLAGS: [u16; 2] = [4, 5];
    /// Segments are translated whatever their sequence numbers (`IP_CT_TCP_FLAG_BE_LIBERAL`).
    pub const LIBERAL: u8 = 8;
    /// SCTP: an established association.
    pub const SCTP_ESTABLISHED: u8 = 4;
}

/// Bits of [`Entry::status`](super::Entry::status) (`enum ip_conntrack_status`).
pub mod status {
    pub const SEEN_REPLY: u32 = 1 << 1;
    pub const ASSURED: u32 = 1 << 2;
    pub const CONFIRMED: u32 = 1 << 3;
    pub const SRC_NAT: u32 = 1 << 4;
    pub const DST_NAT: u32 = 1 << 5;
}

/// States of a TCP connection (`enum tcp_conntrack`).
pub mod tcp_state {
    pub const SYN_SENT: u8 = 1;
    pub const ESTABLISHED: u8 = 3;
    pub const TIME_WAIT: u8 = 7;
    pub const CLOSE: u8 = 8;
}

/// Asks for all connections of a family with all of these bits of the status.
pub fn list(family: Family, status: u32) -> Message {
    let bits = status.to_be_bytes();
    let attributes = if status == 0 {
        Attributes::default()
    } else {
        Attributes::default().with(attribute::STATUS, &bits).with(attribute::STATUS_MASK, &bits)
    };
    Message::nfnetlink(GET, family.number(), attributes)
}

/// Asks for the connection with this tuple of one of its directions.
pub fn get(tuple: &Tuple) -> Message {
    of_tuple(GET, tuple)
}

/// Removes the connection with this tuple of one of its directions.
pub fn delete(tuple: &Tuple) -> Message {
    of_tuple(DELETE, tuple)
}

fn of_tuple(kind: u16, tuple: &Tuple) -> Message {
    let attributes = Attributes::default().nest(attribute::TUPLE_ORIGINAL, &tuple_attributes(tuple));
    Message::nfnetlink(kind, tuple.family().number(), attributes)
}

/// Makes a connection.
///
/// The kernel sets the bits of NAT in the status only where a NAT attribute changes the reply tuple: that one is the untranslated one here.
pub fn insert(entry: &NewEntry) -> Message {
    let NewEntry { original, backend, source, is_answered, timeout } = entry;
    let answered = if *is_answered { status::SEEN_REPLY | status::ASSURED } else { 0 };
    let status = status::CONFIRMED | answered;
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
    let mut attributes = Attributes::default()
        .nest(attribute::TUPLE_ORIGINAL, &tuple_attributes(original))
        .nest(attribute::TUPLE_REPLY, &tuple_attributes(&original.reversed()))
        .with(attribute::STATUS, &status.to_be_bytes())
        .with(attribute::TIMEOUT, &seconds.to_be_bytes());
    if *backend != original.dst {
        attributes = attributes.nest(attribute::NAT_DESTINATION, &nat_attributes(*backend));
    }
    if let Some(source) = source {
        attributes = attributes.nest(attribute::NAT_SOURCE, &nat_attributes(*source));
    }
    let info = match original.protocol {
        TCP => {
            let liberal = [info::LIBERAL; 2];
            let state = if *is_answered { tcp_state::ESTABLISHED } else { tcp_state::SYN_SENT };
            let tcp = Attributes::default().with(info::STATE, &[state]);
            let tcp = info::FLAGS.into_iter().fold(tcp, |tcp, flags| tcp.with(flags, &liberal));
            Some(Attributes::default().nest(info::TCP, &tcp))
        }
        SCTP => {
            let sctp = Attributes::default().with(info::STATE, &[info::SCTP_ESTABLISHED]);
            // Without verification tags the kernel takes the association for one that it has not seen begin.
            let sctp = sctp.with(2, &[0; 4]).with(3, &[0; 4]);
            Some(Attributes::default().nest(info::SCTP, &sctp))
        }
        _ => None,
    };
    if let Some(info) = info {
        attributes = attributes.nest(attribute::PROTOCOL_INFO, &info);
    }
    Message::nfnetlink(NEW, original.family().number(), attributes)
}

fn tuple_attributes(of: &Tuple) -> Attributes {
    let [src, dst] = [of.src.ip(), of.dst.ip()].map(address_bytes);
    let v6 = usize::from(of.src.is_ipv6());
    let addresses = Attributes::default().with(tuple::SRC[v6], &src).with(tuple::DST[v6], &dst);
    let protocol = Attributes::default()
        .with(tuple::NUMBER, &[of.protocol])
        .with(tuple::SRC_PORT, &of.src.port().to_be_bytes())
        .with(tuple::DST_PORT, &of.dst.port().to_be_bytes());
    Attributes::default().nest(tuple::ADDRESSES, &addresses).nest(tuple::PROTOCOL, &protocol)
}

fn nat_attributes(to: SocketAddr) -> Attributes {
    let (address, port, v6) = (address_bytes(to.ip()), to.port().to_be_bytes(), usize::from(to.is_ipv6()));
    let ports = Attributes::default().with(nat::FIRST_PORT, &port).with(nat::LAST_PORT, &port);
    Attributes::default().with(nat::FIRST[v6], &address).with(nat::LAST[v6], &address).nest(nat::PORTS, &ports)
}

fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The connection in a message. `None`: it is of another protocol or zone, or no connection at all.
pub fn entry(message: &Message) -> Option<Entry> {
    let attributes = &message.attributes;
    if message.kind != NEW || big16(attributes, attribute::ZONE).is_some_and(|zone| zone != 0) {
        return None;
    }
    let state = find(attributes, attribute::PROTOCOL_INFO).and_then(|info| {
        let of_protocol = find(info, info::TCP).or_else(|| find(info, info::SCTP))?;
        find(of_protocol, info::STATE)?.first().copied()
    });
    let timeout = big32(attributes, attribute::TIMEOUT).unwrap_or(0);
    Some(Entry {
        original: read_tuple(find(attributes, attribute::TUPLE_ORIGINAL)?)?,
        reply: read_tuple(find(attributes, attribute::TUPLE_REPLY)?)?,
        status: big32(attributes, attribute::STATUS)?,
        state,
        timeout: Duration::from_secs(timeout.into()),
    })
}

fn read_tuple(bytes: &[u8]) -> Option<Tuple> {
    if big16(bytes, tuple::ZONE).is_some_and(|zone| zone != 0) {
        return None;
    }
    let (addresses, of_protocol) = (find(bytes, tuple::ADDRESSES)?, find(bytes, tuple::PROTOCOL)?);
    let protocol = *find(of_protocol, tuple::NUMBER)?.first()?;
    if !matches!(protocol, TCP | UDP | SCTP) {
        return None;
    }
    let end = |kinds: [u16; 2], port| {
        let address = match find(addresses, kinds[0]) {
            Some(bytes) => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            None => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(find(addresses, kinds[1])?).ok()?)),
        };
        Some(SocketAddr::new(address, big16(of_protocol, port)?))
    };
    Some(Tuple { src: end(tuple::SRC, tuple::SRC_PORT)?, dst: end(tuple::DST, tuple::DST_PORT)?, protocol })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(src: &str, dst: &str, protocol: u8) -> Tuple {
        Tuple { src: src.parse().expect("an address"), dst: dst.parse().expect("an address"), protocol }
    }

    /// A connection as the kernel lists it.
    fn listed(entry: &Entry, zone: u16) -> Message {
        let state = Attributes::default().with(info::STATE, &[entry.state.unwrap_or(0)]);
        let attributes = Attributes::default()
            .nest(attribute::TUPLE_ORIGINAL, &tuple_attributes(&entry.original))
            .nest(attribute::TUPLE_REPLY, &tuple_attributes(&entry.reply))
            .with(attribute::STATUS, &entry.status.to_be_bytes())
            .nest(attribute::PROTOCOL_INFO, &Attributes::default().nest(info::TCP, &state))
            .with(attribute::TIMEOUT, &90_u32.to_be_bytes())
            .with(attribute::ZONE, &zone.to_be_bytes());
        Message::nfnetlink(NEW, entry.original.family().number(), attributes)
    }

    fn sample() -> Entry {
        Entry {
            original: tuple("[fd00::7]:40000", "[fd00:1::1]:80", TCP),
            reply: tuple("[fd00::9]:8080", "[fd00::7]:40000", TCP),
            status: status::CONFIRMED | status::ASSURED | status::DST_NAT,
            state: Some(tcp_state::ESTABLISHED),
            timeout: Duration::from_secs(90),
        }
    }

    #[test]
    fn a_connection_is_read_as_the_kernel_writes_it() {
        let message = listed(&sample(), 0);
        assert_eq!(entry(&message), Some(sample()));
        assert!(sample().is_translated());
        // What follows the status may be missing: state, timeout, zone.
        let optional = 16 + 8 + 8;
        for length in 0..message.attributes.len() - optional {
            let cut = Message::nfnetlink(NEW, 10, message.attributes[..length].into());
            assert_eq!(entry(&cut), None, "cut at {length}");
        }
    }

    #[test]
    fn other_zones_and_other_protocols_are_left_out() {
        assert_eq!(entry(&listed(&sample(), 7)), None);
        let icmp = Entry { original: tuple("10.0.0.1:0", "10.0.0.2:8", 1), ..sample() };
        assert_eq!(entry(&listed(&icmp, 0)), None);
        assert_eq!(entry(&Message { kind: DELETE, ..listed(&sample(), 0) }), None);
    }

    #[test]
    fn an_entry_is_made_with_its_translation() {
        let original = tuple("10.0.0.7:40000", "10.96.0.1:80", TCP);
        let entry = NewEntry {
            original,
            backend: "10.0.1.9:8080".parse().expect("an address"),
            source: Some("10.0.0.1:61000".parse().expect("an address")),
            is_answered: true,
            timeout: Duration::from_hours(1),
        };
        let message = insert(&entry);
        assert_eq!((message.kind, message.family()), (NEW, 2));
        let of = |kind| find(&message.attributes, kind).and_then(read_tuple);
        assert_eq!(of(attribute::TUPLE_ORIGINAL), Some(original));
        assert_eq!(of(attribute::TUPLE_REPLY), Some(original.reversed()), "the NAT attributes change it");
        assert_eq!(big32(&message.attributes, attribute::TIMEOUT), Some(3600));
        for (kind, address, port) in
            [(attribute::NAT_DESTINATION, [10, 0, 1, 9], 8080), (attribute::NAT_SOURCE, [10, 0, 0, 1], 61000)]
        {
            let nat = find(&message.attributes, kind).expect("NAT");
            assert_eq!((find(nat, nat::FIRST[0]), find(nat, nat::LAST[0])), (Some(&address[..]), Some(&address[..])));
            let ports = find(nat, nat::PORTS).expect("ports");
            assert_eq!(big16(ports, nat::FIRST_PORT), Some(port));
            assert_eq!(big16(ports, nat::LAST_PORT), Some(port));
        }
        let info = find(&message.attributes, attribute::PROTOCOL_INFO).expect("what TCP has of its own");
        let tcp = find(info, info::TCP).expect("TCP");
        assert_eq!(find(tcp, info::STATE), Some(&[tcp_state::ESTABLISHED][..]));
        assert!(info::FLAGS.into_iter().all(|flags| find(tcp, flags) == Some(&[8, 8])));
    }

    #[test]
    fn what_nobody_has_answered_and_nothing_translates_is_made_so() {
        let original = tuple("10.0.0.7:40000", "10.0.1.9:8080", TCP);
        let timeout = Duration::from_mins(1);
        let entry = NewEntry { original, backend: original.dst, source: None, is_answered: false, timeout };
        let attributes = insert(&entry).attributes;
        assert_eq!(big32(&attributes, attribute::STATUS), Some(status::CONFIRMED));
        assert!(
            [attribute::NAT_DESTINATION, attribute::NAT_SOURCE].into_iter().all(|nat| find(&attributes, nat).is_none())
        );
        let tcp = find(&attributes, attribute::PROTOCOL_INFO).and_then(|info| find(info, info::TCP)).expect("TCP");
        assert_eq!(find(tcp, info::STATE), Some(&[tcp_state::SYN_SENT][..]));
    }

    #[test]
    fn a_connection_is_removed_by_its_tuple() {
        let udp = tuple("[fd00::7]:5353", "[fd00::9]:53", UDP);
        let message = delete(&udp);
        assert_eq!((message.kind, message.family()), (DELETE, 10));
        assert_eq!(find(&message.attributes, attribute::TUPLE_ORIGINAL).and_then(read_tuple), Some(udp));
        assert_eq!(get(&udp), Message { kind: GET, ..message });
    }

    #[test]
    fn only_what_is_asked_for_is_listed() {
        let message = list(Family::V4, status::DST_NAT);
        assert_eq!(message.kind, GET);
        assert_eq!(big32(&message.attributes, attribute::STATUS), Some(status::DST_NAT));
        assert_eq!(big32(&message.attributes, attribute::STATUS_MASK), Some(status::DST_NAT));
        assert!(list(Family::V6, 0).attributes.is_empty());
    }
}
