//! The fields of flow entries that say which connection an entry is of, found by name in any layout.

use lb_common::abi::{flow_flags, flow_state, half_open_flags};

use super::record::{Field, Record};

/// Fields of a flow's key: of both sets, as they have the same.
#[derive(Clone, Debug)]
pub(super) struct KeyFields {
    src: Field,
    dst: Field,
    src_port: Field,
    dst_port: Field,
    protocol: Field,
    size: usize,
}

/// Fields of an entry.
#[derive(Clone, Debug)]
pub(super) struct FlowFields {
    isn: Field,
    since_s: Field,
    seen_s: Field,
    state: Field,
    flags: Field,
    address: Field,
    port: Field,
    client: Field,
    client_port: Field,
    /// Of an entry in `half_open`: [`half_open_flags`].
    handshake: Option<Field>,
}

impl KeyFields {
    /// `Err`: the name of a field that is missing.
    pub fn new(key: &Record) -> Result<Self, &'static str> {
        let field = |name| key.field(name).ok_or(name);
        Ok(Self {
            src: field("src")?,
            dst: field("dst")?,
            src_port: field("src_port")?,
            dst_port: field("dst_port")?,
            protocol: field("protocol")?,
            size: key.size as usize,
        })
    }

    pub fn protocol(&self, key: &[u8]) -> u64 {
        self.protocol.number(key).unwrap_or(0)
    }
}

impl FlowFields {
    /// `Err`: the name of a field that is missing.
    pub fn new(value: &Record) -> Result<Self, &'static str> {
        // An entry of `half_open` has that of the flow in it.
        let field = |name: &'static str| value.field(&format!("flow.{name}")).or_else(|| value.field(name)).ok_or(name);
        let is_half_open = value.fields.keys().any(|name| name.starts_with("flow."));
        Ok(Self {
            isn: field("isn")?,
            since_s: field("since_s")?,
            seen_s: field("seen_s")?,
            state: field("state")?,
            flags: field("flags")?,
            address: field("address")?,
            port: field("port")?,
            client: field("client")?,
            client_port: field("client_port")?,
            handshake: value.field("flags").filter(|_| is_half_open),
        })
    }

    /// The key of the opposite direction's entry, as [`lb_common::decide::pair_key`] has it.
    pub fn pair_key(&self, keys: &KeyFields, key: &[u8], value: &[u8]) -> Vec<u8> {
        let (backend, client) = ((self.address, self.port), (self.client, self.client_port));
        let (from, to) = if self.is_reply(value) { (client, backend) } else { (backend, client) };
        let mut pair = vec![0; keys.size];
        let parts = [
            (from.0, keys.src, value),
            (to.0, keys.dst, value),
            (from.1, keys.src_port, value),
            (to.1, keys.dst_port, value),
        ];
        for (part, place, bytes) in parts.into_iter().chain([(keys.protocol, keys.protocol, key)]) {
            if let (Some(from), Some(to)) = (part.of(bytes), place.of_mut(&mut pair))
                && from.len() == to.len()
            {
                to.copy_from_slice(from);
            }
        }
        pair
    }

    /// Offset of the state in an entry.
    pub const fn state_at(&self) -> u32 {
        self.state.offset
    }

    pub fn is_reply(&self, value: &[u8]) -> bool {
        self.flags.number(value).unwrap_or(0) & u64::from(flow_flags::REPLY) != 0
    }

    /// Whether nobody has answered, or the answer is not acknowledged yet.
    pub fn is_handshake(&self, value: &[u8]) -> bool {
        self.state.number(value) == Some(flow_state::HALF_OPEN.into())
    }

    /// Whether the connection is over.
    pub fn is_closing(&self, value: &[u8]) -> bool {
        self.state.number(value) == Some(flow_state::CLOSING.into())
    }

    /// Whether an entry of `half_open` is a note about the established connection under the same key.
    pub fn is_note(&self, value: &[u8]) -> bool {
        let flags = self.handshake.and_then(|flags| flags.number(value)).unwrap_or(0);
        flags & u64::from(half_open_flags::SECOND) != 0
    }

    /// Sets [`half_open_flags`] of an entry of `half_open`.
    pub fn set_handshake_flags(&self, value: &mut [u8], flags: u8) {
        if let Some([first, ..]) = self.handshake.and_then(|field| field.of_mut(value)) {
            *first = flags;
        }
    }

    /// Whether this is the reply entry of a connection whose backend sees another address or port than the client's own.
    pub fn is_translated_reply(&self, keys: &KeyFields, key: &[u8], value: &[u8]) -> bool {
        let own = [(self.client, keys.dst), (self.client_port, keys.dst_port)];
        self.is_reply(value) && own.into_iter().any(|(field, place)| field.of(value) != place.of(key))
    }

    /// When the connection began, seconds of `CLOCK_MONOTONIC`.
    pub fn since_s(&self, value: &[u8]) -> u64 {
        self.since_s.number(value).unwrap_or(0)
    }

    /// When its last packet was seen.
    pub fn seen_s(&self, value: &[u8]) -> u64 {
        self.seen_s.number(value).unwrap_or(0)
    }

    /// What is the same in all entries of a connection under one key, and differs from those of any other.
    pub fn identity(&self, value: &[u8]) -> (Option<u64>, Option<u64>) {
        (self.isn.number(value), self.since_s.number(value))
    }
}
