//! Messages that the netlink-packet crates lack: those of netfilter and of IPVS, with four bytes of header and attributes.

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

use super::Attributes;

/// A request, or what the kernel answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// nfnetlink: subsystem and message (`NFNL_SUBSYS_*` << 8 | message). Generic netlink: the family.
    pub kind: u16,
    /// `struct nfgenmsg` or `struct genlmsghdr`.
    pub header: [u8; 4],
    pub attributes: Attributes,
}

impl Message {
    /// A message to netfilter. `family`: an address family, or 0 for all of them.
    pub fn nfnetlink(kind: u16, family: u8, attributes: Attributes) -> Self {
        Self { kind, header: [family, 0, 0, 0], attributes }
    }

    /// The address family of a message of netfilter.
    pub fn family(&self) -> u8 {
        self.header[0]
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.header.len() + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&[&self.header, &*self.attributes].concat());
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let (own, attributes) =
            payload.split_first_chunk().ok_or_else(|| DecodeError::buffer_too_small(payload.len(), 4))?;
        Ok(Self { kind: header.message_type, header: *own, attributes: attributes.into() })
    }
}
