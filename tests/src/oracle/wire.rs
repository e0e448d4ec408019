//! Packets made from scratch, and the answers that a refusal must be. The packet library computes all checksums in full.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpDscp, IpEcn, IpFragOffset,
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, SlicedPacket, TcpHeader, TransportSlice, UdpHeader,
    icmpv4, icmpv6,
};
use lb_common::abi::{FlowKey, TCP, UDP};
use lb_common::decide::Packet;

/// What a service speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// TCP's flag bits as in the header's byte.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// The most bytes that a refusal by ICMP quotes.
const MOST_QUOTED: usize = 508;

/// Everything that makes up a packet.
#[derive(Clone, Debug)]
pub struct Frame {
    pub protocol: Protocol,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub tcp_flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// A multiple of 4 bytes, IPv4 only.
    pub ip_options: Vec<u8>,
    /// A multiple of 4 bytes.
    pub tcp_options: Vec<u8>,
    pub payload: Vec<u8>,
    pub hops: u8,
    pub identification: u16,
    pub dont_fragment: bool,
    /// A first fragment: more follow.
    pub more_fragments: bool,
    /// In units of 8 bytes; anything but 0 is a later fragment.
    pub fragment_offset: u16,
    /// UDP over IPv4 may go without a checksum.
    pub without_checksum: bool,
    /// How far the checksum is off: one that came wrong must not leave right. 0: it is right.
    pub checksum_error: u16,
    /// Bytes behind the packet, as Ethernet pads short ones.
    pub padding: usize,
    pub macs: ([u8; 6], [u8; 6]),
}

/// The address of a key.
fn ip<const N: usize>(address: [u8; N]) -> IpAddr {
    let v4 = <[u8; 4]>::try_from(&address[..]).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(&address[..]).map(IpAddr::from)).expect("of a family")
}

/// Source and destination.
pub type Ends<const N: usize> = ([u8; N], [u8; N]);

/// Outer addresses of an encapsulated frame, and the frame as it is decapsulated.
pub fn opened<const N: usize>(bytes: &[u8]) -> Option<(Ends<N>, Vec<u8>)> {
    let sliced = SlicedPacket::from_ethernet(bytes).ok()?;
    let (src, dst, payload) = match sliced.net? {
        NetSlice::Ipv4(ip) => (ip.header().source().to_vec(), ip.header().destination().to_vec(), ip.payload().payload),
        NetSlice::Ipv6(ip) => (ip.header().source().to_vec(), ip.header().destination().to_vec(), ip.payload().payload),
        NetSlice::Arp(_) => return None,
    };
    let ends = (src.try_into().ok()?, dst.try_into().ok()?);
    Some((ends, [bytes.get(..14)?, payload].concat()))
}

/// The tuple in a frame of TCP or UDP.
pub fn tuple<const N: usize>(bytes: &[u8]) -> Option<FlowKey<N>> {
    let sliced = SlicedPacket::from_ethernet(bytes).ok()?;
    let (protocol, src_port, dst_port) = match sliced.transport? {
        TransportSlice::Tcp(tcp) => (TCP, tcp.source_port(), tcp.destination_port()),
        TransportSlice::Udp(udp) => (UDP, udp.source_port(), udp.destination_port()),
        _ => return None,
    };
    let ((src, dst), _) = opened(bytes)?;
    Some(FlowKey { src, dst, src_port, dst_port, protocol, pad: [0; 3] })
}

impl Frame {
    /// A plain frame between these ends.
    pub fn between(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            protocol,
            src,
            dst,
            tcp_flags: 0,
            sequence: 0,
            acknowledgement: 0,
            ip_options: Vec::new(),
            tcp_options: Vec::new(),
            payload: Vec::new(),
            hops: 64,
            identification: 0x1234,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            without_checksum: false,
            checksum_error: 0,
            padding: 0,
            macs: ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]),
        }
    }

    /// The frame of a packet as the decision has it.
    pub fn of<const N: usize>(packet: &Packet<N>) -> Self {
        let key = &packet.key;
        let protocol = if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
        let (src, dst) = (SocketAddr::new(ip(key.src), key.src_port), SocketAddr::new(ip(key.dst), key.dst_port));
        let (tcp_flags, sequence, acknowledgement) = (packet.tcp_flags, packet.seq, packet.ack);
        Self { tcp_flags, sequence, acknowledgement, ..Self::between(protocol, src, dst) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let (header, transport) = match (self.src, self.dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
                let (src, dst) = (src.ip().octets(), dst.ip().octets());
                let transport = self.transport(
                    |tcp, body| tcp.calc_checksum_ipv4_raw(src, dst, body).ok(),
                    |udp, body| {
                        if self.without_checksum { Some(0) } else { udp.calc_checksum_ipv4_raw(src, dst, body).ok() }
                    },
                );
                let mut ip = ipv4(transport.len(), self.hops, self.number(), src, dst);
                ip.identification = self.identification;
                ip.dont_fragment = self.dont_fragment;
                ip.more_fragments = self.more_fragments;
                ip.fragment_offset = IpFragOffset::try_new(self.fragment_offset).expect("13 bits");
                ip.dscp = IpDscp::try_new(10).expect("6 bits");
                ip.ecn = IpEcn::try_new(1).expect("2 bits");
                ip.options = self.ip_options.as_slice().try_into().expect("whole words");
                ip.set_payload_len(transport.len()).expect("short");
                ip.header_checksum = ip.calc_header_checksum();
                (ip.to_bytes().to_vec(), transport)
            }
            (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
                let (src, dst) = (src.ip().octets(), dst.ip().octets());
                let transport = self.transport(
                    |tcp, body| tcp.calc_checksum_ipv6_raw(src, dst, body).ok(),
                    |udp, body| udp.calc_checksum_ipv6_raw(src, dst, body).ok(),
                );
                let mut ip = ipv6(transport.len(), self.hops, self.number(), src, dst);
                ip.traffic_class = 0x29;
                ip.flow_label = Ipv6FlowLabel::try_new(u32::from(self.identification)).expect("20 bits");
                (ip.to_bytes().to_vec(), transport)
            }
            _ => panic!("both ends of a packet are of one family"),
        };
        let mut bytes = self.ethernet(self.macs.0, self.macs.1);
        bytes.extend(header);
        bytes.extend(transport);
        bytes.resize(bytes.len() + self.padding, 0xaa);
        bytes
    }

    /// The answer that refuses it: RST or ICMP port unreachable, back to where it came from. `None`: nothing can be answered.
    pub fn refusal(&self) -> Option<Vec<u8>> {
        let v4 = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
        let v6 = Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port);
        Some(self.answer((self.protocol == Protocol::Udp).then_some((v4, v6))))
    }

    /// The answer that says that it has come too far.
    pub fn expiry(&self) -> Vec<u8> {
        let v4 = Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit);
        let v6 = Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded);
        self.answer(Some((v4, v6)))
    }

    /// An error, or else a RST.
    fn answer(&self, error: Option<(Icmpv4Type, Icmpv6Type)>) -> Vec<u8> {
        let mut bytes = self.ethernet(self.macs.1, self.macs.0);
        let number = match (&error, self.src.is_ipv4()) {
            (None, _) => IpNumber::TCP,
            (Some(_), true) => IpNumber::ICMP,
            (Some(_), false) => IpNumber::IPV6_ICMP,
        };
        let original = self.bytes();
        // Whole words of the packet without its padding, as many as a refusal quotes.
        let network_length = original.len() - self.padding - 14;
        let quoted = &original[14..14 + (network_length.min(MOST_QUOTED) & !3)];
        // From the one who was asked to the one who asked.
        match (self.dst, self.src) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let (from, to) = (from.ip().octets(), to.ip().octets());
                let body = if let Some((kind, _)) = error {
                    [&*Icmpv4Header::with_checksum(kind, quoted).to_bytes(), quoted].concat()
                } else {
                    let mut tcp = self.reset();
                    tcp.checksum = tcp.calc_checksum_ipv4_raw(from, to, &[]).expect("short");
                    tcp.to_bytes().to_vec()
                };
                let mut ip = ipv4(body.len(), 64, number, from, to);
                ip.dont_fragment = true;
                ip.header_checksum = ip.calc_header_checksum();
                bytes.extend(ip.to_bytes());
                bytes.extend(body);
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                let (from, to) = (from.ip().octets(), to.ip().octets());
                let body = if let Some((_, kind)) = error {
                    let header = Icmpv6Header::with_checksum(kind, from, to, quoted).expect("short");
                    [&*header.to_bytes(), quoted].concat()
                } else {
                    let mut tcp = self.reset();
                    tcp.checksum = tcp.calc_checksum_ipv6_raw(from, to, &[]).expect("short");
                    tcp.to_bytes().to_vec()
                };
                bytes.extend(ipv6(body.len(), 64, number, from, to).to_bytes());
                bytes.extend(body);
            }
            _ => panic!("both ends of a packet are of one family"),
        }
        bytes
    }

    fn number(&self) -> IpNumber {
        if self.protocol == Protocol::Tcp { IpNumber::TCP } else { IpNumber::UDP }
    }

    fn ethernet(&self, source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
        let ether_type = if self.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec()
    }

    fn transport(
        &self,
        tcp_checksum: impl Fn(&TcpHeader, &[u8]) -> Option<u16>,
        udp_checksum: impl Fn(&UdpHeader, &[u8]) -> Option<u16>,
    ) -> Vec<u8> {
        let header = if self.protocol == Protocol::Tcp {
            let mut tcp = TcpHeader::new(self.src.port(), self.dst.port(), self.sequence, 4096);
            tcp.acknowledgment_number = self.acknowledgement;
            tcp.set_options_raw(&self.tcp_options).expect("whole words");
            set_flags(&mut tcp, self.tcp_flags);
            let right = tcp_checksum(&tcp, &self.payload).expect("short");
            // 0 and 0xffff are one number; computed in full it is written as 0.
            tcp.checksum = match plus(right, self.checksum_error) {
                0xffff => 0,
                other => other,
            };
            tcp.to_bytes().to_vec()
        } else {
            let length = u16::try_from(8 + self.payload.len()).expect("short");
            let mut udp =
                UdpHeader { source_port: self.src.port(), destination_port: self.dst.port(), length, checksum: 0 };
            let right = udp_checksum(&udp, &self.payload).expect("short");
            // Here 0 says that there is none.
            udp.checksum = match (right, plus(right, self.checksum_error)) {
                (0, _) => 0,
                (_, 0) => 0xffff,
                (_, other) => other,
            };
            udp.to_bytes().to_vec()
        };
        [header, self.payload.clone()].concat()
    }

    /// RFC 9293, section 3.10.7.1: the sequence number from the acknowledgement, or an acknowledgement of what came.
    fn reset(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(self.dst.port(), self.src.port(), 0, 0);
        tcp.rst = true;
        if self.tcp_flags & ACK != 0 {
            tcp.sequence_number = self.acknowledgement;
        } else {
            let length =
                self.payload.len() + usize::from(self.tcp_flags & SYN != 0) + usize::from(self.tcp_flags & FIN != 0);
            tcp.ack = true;
            tcp.acknowledgment_number = self.sequence.wrapping_add(u32::try_from(length).expect("short"));
        }
        tcp
    }
}

/// Sum in one's complement.
fn plus(one: u16, other: u16) -> u16 {
    let (sum, carry) = one.overflowing_add(other);
    sum + u16::from(carry)
}

fn ipv4(length: usize, hops: u8, number: IpNumber, src: [u8; 4], dst: [u8; 4]) -> Ipv4Header {
    Ipv4Header::new(u16::try_from(length).expect("short"), hops, number, src, dst).expect("short")
}

fn ipv6(length: usize, hops: u8, number: IpNumber, source: [u8; 16], destination: [u8; 16]) -> Ipv6Header {
    Ipv6Header {
        payload_length: u16::try_from(length).expect("short"),
        next_header: number,
        hop_limit: hops,
        source,
        destination,
        ..Ipv6Header::default()
    }
}

fn set_flags(tcp: &mut TcpHeader, flags: u8) {
    let set = |bit: u8| flags & bit != 0;
    (tcp.fin, tcp.syn, tcp.rst, tcp.psh) = (set(FIN), set(SYN), set(RST), set(8));
    (tcp.ack, tcp.urg, tcp.ece, tcp.cwr) = (set(ACK), set(32), set(64), set(128));
}
