//! Messages of nf_tables (`linux/netfilter/nf_tables.h`): their numbers, what a chain's says, and transactions.

use std::io;

use netlink_packet_core::NLM_F_ACK;

use super::{Attributes, Message, Socket, big32, find, text};

/// `NFNL_SUBSYS_NFTABLES`.
const NF_TABLES: u16 = 10;
const SUBSYSTEM: u16 = NF_TABLES << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

pub const NEW_TABLE: u16 = SUBSYSTEM;
pub const GET_TABLE: u16 = SUBSYSTEM | 1;
pub const DELETE_TABLE: u16 = SUBSYSTEM | 2;
pub const NEW_CHAIN: u16 = SUBSYSTEM | 3;
pub const GET_CHAIN: u16 = SUBSYSTEM | 4;
pub const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
pub const NEW_RULE: u16 = SUBSYSTEM | 6;
pub const GET_RULE: u16 = SUBSYSTEM | 7;
pub const DELETE_RULE: u16 = SUBSYSTEM | 8;
pub const GET_GENERATION: u16 = SUBSYSTEM | 16;

/// Kinds of attributes.
pub mod attribute {
    pub const TABLE_NAME: u16 = 1;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_USE: u16 = 6;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_HANDLE: u16 = 3;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const LIST_ELEMENT: u16 = 1;
    pub const EXPRESSION_NAME: u16 = 1;
    pub const EXPRESSION_DATA: u16 = 2;
    pub const CT_REGISTER: u16 = 1;
    pub const CT_KEY: u16 = 2;
    pub const IMMEDIATE_DATA: u16 = 2;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CHAIN: u16 = 2;
    pub const GENERATION_ID: u16 = 1;
}

/// `NF_DROP`.
const POLICY_DROP: u32 = 0;

/// A chain, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// `NFPROTO_*`.
    pub family: u8,
    pub table: String,
    pub name: String,
    /// Where packets enter it by themselves; `None`: others lead to it.
    pub hook: Option<u32>,
    pub rules: u32,
    /// Its policy is to drop.
    pub drops: bool,
}

impl Chain {
    fn read(message: &Message) -> Option<Self> {
        let of_chain = &message.attributes;
        (message.kind == NEW_CHAIN).then(|| Self {
            family: message.family(),
            table: text(of_chain, attribute::CHAIN_TABLE),
            name: text(of_chain, attribute::CHAIN_NAME),
            hook: find(of_chain, attribute::CHAIN_HOOK).and_then(|hook| big32(hook, attribute::HOOK_NUMBER)),
            rules: big32(of_chain, attribute::CHAIN_USE).unwrap_or(0),
            drops: big32(of_chain, attribute::CHAIN_POLICY) == Some(POLICY_DROP),
        })
    }
}

/// The chains of all families.
pub fn chains(socket: &mut Socket) -> io::Result<Vec<Chain>> {
    socket.list(Message::nfnetlink(GET_CHAIN, 0, Attributes::default()), |message| Chain::read(&message))
}

/// The number that changes with every change.
pub fn generation(socket: &mut Socket) -> io::Result<Option<u32>> {
    let question = Message::nfnetlink(GET_GENERATION, 0, Attributes::default());
    let found = socket.ask(question, |message: Message| big32(&message.attributes, attribute::GENERATION_ID))?;
    Ok(found.last().copied())
}

/// Makes changes, each with its flags: all of them or none.
///
/// The kernel may answer a transaction that it refuses more than once, so each one has a socket of its own.
pub fn apply(changes: Vec<(u16, Message)>) -> io::Result<()> {
    let Some(mut socket) = Socket::netfilter()? else { return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) };
    socket.transaction(batch(changes))
}

/// Errors come unasked; the answer to the last change says that there was none.
fn batch(mut changes: Vec<(u16, Message)>) -> Vec<(u16, Message)> {
    let border = |kind| {
        let [high, low] = NF_TABLES.to_be_bytes();
        (0, Message { kind, header: [0, 0, high, low], attributes: Attributes::default() })
    };
    if let Some((flags, _)) = changes.last_mut() {
        *flags |= NLM_F_ACK;
    }
    changes.insert(0, border(BATCH_BEGIN));
    changes.push(border(BATCH_END));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_read_as_the_kernel_writes_it() {
        let hook = Attributes::default().with(1, &2_u32.to_be_bytes()).with(2, &0_u32.to_be_bytes());
        let attributes = Attributes::default()
            .text(1, "filter")
            .text(3, "FORWARD")
            .nest(4, &hook)
            .with(5, &0_u32.to_be_bytes())
            .with(6, &3_u32.to_be_bytes());
        let mut message = Message::nfnetlink(NEW_CHAIN, 2, attributes);
        let (table, name) = ("filter".to_owned(), "FORWARD".to_owned());
        assert_eq!(Chain::read(&message), Some(Chain { family: 2, table, name, hook: Some(2), rules: 3, drops: true }));
        message.kind = GET_CHAIN;
        assert_eq!(Chain::read(&message), None);
    }

    #[test]
    fn the_last_change_of_a_batch_alone_is_confirmed() {
        let change = |kind| (0, Message::nfnetlink(kind, 10, Attributes::default()));
        let batch = batch(vec![change(NEW_TABLE), change(NEW_CHAIN)]);
        let sent: Vec<_> = batch.iter().map(|(flags, message)| (*flags, message.kind)).collect();
        assert_eq!(sent, [(0, BATCH_BEGIN), (0, NEW_TABLE), (NLM_F_ACK, NEW_CHAIN), (0, BATCH_END)]);
        assert_eq!(batch[0].1.header, [0, 0, 0, 10], "the batch names its subsystem");
    }
}
