//! Records of the event ring, decoded field by field.

use std::net::IpAddr;

use bytes::Buf;
use lb_common::abi::{self, EventHook};
use lb_common::outcome::Outcome;

use super::inventory::protocol_name;
use super::table::place;

/// What became of a packet or a socket call, as the programs reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    pub outcome: Outcome,
    /// Service port id; 0: none.
    pub service: u32,
    /// Backend id; 0: none.
    pub backend: u32,
    pub src: (IpAddr, u16),
    pub dst: (IpAddr, u16),
    pub protocol: u8,
    pub hook: &'static str,
    pub ifindex: u32,
}

/// Why a record is no event.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    #[error("an event record of {found} bytes, expected {expected}: the pinned programs are of another version")]
    Length { found: usize, expected: usize },
    #[error("an event record with {field} {found}, which this version does not know: the pinned programs are newer")]
    Unknown { field: &'static str, found: u8 },
}

impl Event {
    /// Decodes one record of the ring. Minimum kernel of the ring: 5.8.
    pub fn decode(mut record: impl Buf) -> Result<Self, EventError> {
        let expected = size_of::<abi::Event>();
        if record.remaining() != expected {
            return Err(EventError::Length { found: record.remaining(), expected });
        }
        // In the order of the record; numbers in the byte order of this machine, which wrote them.
        let (time_ns, service, backend) = (record.get_u64_ne(), record.get_u32_ne(), record.get_u32_ne());
        let (mut src, mut dst) = ([0; abi::V6], [0; abi::V6]);
        record.copy_to_slice(&mut src);
        record.copy_to_slice(&mut dst);
        let (src_port, dst_port) = (record.get_u16_ne(), record.get_u16_ne());
        let (protocol, outcome, hook, family) = (record.get_u8(), record.get_u8(), record.get_u8(), record.get_u8());
        let ifindex = record.get_u32_ne();
        Ok(Self {
            time_ns,
            outcome: Outcome::from_number(outcome).ok_or(EventError::Unknown { field: "outcome", found: outcome })?,
            service,
            backend,
            src: (address(src, family)?, src_port),
            dst: (address(dst, family)?, dst_port),
            protocol,
            hook: EventHook::from_number(hook)
                .map(EventHook::name)
                .ok_or(EventError::Unknown { field: "hook", found: hook })?,
            ifindex,
        })
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.hook == NO_HOOK {
            return write!(f, "{} backend {}", self.outcome.name(), self.backend);
        }
        let (src, dst) = (place(self.src.0, self.src.1), place(self.dst.0, self.dst.1));
        write!(f, "{} {} {src} → {dst} at {}", self.outcome.name(), protocol_name(self.protocol), self.hook)
    }
}

fn address(bytes: [u8; abi::V6], family: u8) -> Result<IpAddr, EventError> {
    match family {
        4 => Ok(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
        6 => Ok(IpAddr::from(bytes)),
        _ => Err(EventError::Unknown { field: "family", found: family }),
    }
}

/// Stands for the hook of an event that is about a backend, not about a packet.
pub(super) const NO_HOOK: &str = EventHook::NotTold.name();

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use proptest::prelude::*;

    use lb_common::abi::hook;

    use super::*;

    /// As the programs write it: the fields of `abi::Event` one after the other.
    fn record(family: u8, outcome: u8, hook: u8) -> Bytes {
        let mut record = BytesMut::new();
        record.put_u64_ne(7_000_000_001);
        record.put_u32_ne(3);
        record.put_u32_ne(4);
        record.put_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        record.put_slice(&[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        record.put_u16_ne(40_000);
        record.put_u16_ne(80);
        record.put_slice(&[abi::TCP, outcome, hook, family]);
        record.put_u32_ne(12);
        record.put_u32_ne(0);
        record.freeze()
    }

    #[test]
    fn record_has_every_field_in_its_place() {
        let event = Event::decode(record(4, Outcome::RefusedNoEndpoint as u8, hook::POD_IN)).expect("valid");
        assert_eq!(event.time_ns, 7_000_000_001);
        assert_eq!((event.service, event.backend, event.ifindex), (3, 4, 12));
        assert_eq!(event.to_string(), "refused_no_endpoint TCP 10.0.0.1:40000 → 10.96.0.1:80 at pod_in");
    }

    #[test]
    fn what_was_learnt_of_a_backend_names_no_packet() {
        let event = Event::decode(record(4, Outcome::Ejected as u8, hook::NOT_TOLD)).expect("valid");
        assert_eq!(event.to_string(), "ejected backend 4");
    }

    #[test]
    fn ipv6_addresses_take_all_bytes() {
        let event = Event::decode(record(6, 0, hook::XDP)).expect("valid");
        assert_eq!(event.src.0.to_string(), "a00:1::");
    }

    #[test]
    fn records_of_another_version_are_refused() {
        assert_eq!(
            Event::decode(record(4, 0, 1).slice(..60)),
            Err(EventError::Length { found: 60, expected: size_of::<abi::Event>() })
        );
        assert!(matches!(Event::decode(record(4, 200, 1)), Err(EventError::Unknown { field: "outcome", found: 200 })));
        assert!(matches!(Event::decode(record(5, 0, 1)), Err(EventError::Unknown { field: "family", .. })));
        assert!(matches!(Event::decode(record(4, 0, 99)), Err(EventError::Unknown { field: "hook", .. })));
    }

    proptest! {
        #![proptest_config(lb_seed::property(file!(), 256))]

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..130)) {
            let _ = Event::decode(bytes.as_slice());
        }
    }
}
