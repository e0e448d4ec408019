//! An nftables table of Ballast that keeps NAT and connection tracking at work in the kernel.
//!
//! The kernel translates the packets of a tracked connection as long as any NAT chain exists. With the last chain of another proxy it would
//! stop. The table has one chain of type NAT for each family. The one rule in it refers to connection tracking, which the kernel would
//! switch off with the last such rule. The rule changes no packet, and its hook (output) keeps no packet from the fast path.

use std::io;

use super::Family;
use crate::netlink::{Nest, Request, Socket, flag};

/// Name of the table, of `ip` and of `ip6`.
pub const TABLE: &str = "ballast-nat";

const CHAIN: &[u8] = b"output\0";
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;

/// Attributes of `linux/netfilter/nf_tables.h`.
mod attribute {
    pub const TABLE_NAME: u16 = 1;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const LIST_ELEMENT: u16 = 1;
    pub const EXPRESSION_NAME: u16 = 1;
    pub const EXPRESSION_DATA: u16 = 2;
    pub const CT_REGISTER: u16 = 1;
    pub const CT_KEY: u16 = 2;
}

/// `NF_INET_LOCAL_OUT`.
const OUTPUT: u32 = 3;
/// `NF_IP_PRI_NAT_DST`.
const PRIORITY: i32 = -100;
/// `NFT_REG_1`.
const REGISTER: u32 = 1;
/// `NFT_CT_STATUS`.
const STATUS: u32 = 2;

/// Makes the table in both families, unless it is there. NAT and connection tracking stay at work until [`release`].
///
/// A kernel without IPv6 NAT keeps that of IPv4 only. An error: NAT of IPv4 is not kept, either.
pub fn keep() -> io::Result<()> {
    let made = Family::ALL.map(|family| there(change(&make(family)), libc::EEXIST));
    let [v4, v6] = made;
    if let Err(error) = &v6 {
        tracing::debug!("table ip6 {TABLE}: {error}");
    }
    v4.map(drop)
}

/// Removes the table; `false`: there is none. Without another NAT chain the kernel translates no connection any more.
pub fn release() -> io::Result<bool> {
    let [v4, v6] = Family::ALL.map(|family| there(change(&remove(family)), libc::ENOENT));
    Ok(v4? | v6?)
}

/// Whether the table is there.
pub fn is_kept() -> io::Result<bool> {
    let Some(mut socket) = Socket::netfilter()? else { return Ok(false) };
    let mut is_there = false;
    for family in Family::ALL {
        let request = Request::nfnetlink(GET_TABLE, flag::ACK, family.number());
        let request = request.with(attribute::TABLE_NAME, &name()).bytes();
        is_there |= there(socket.converse(&request, |_, _, _| ()), libc::ENOENT)?;
    }
    Ok(is_there)
}

/// `false`: the kernel answered with this error number.
fn there(result: io::Result<()>, number: i32) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(number) => Ok(false),
        // A kernel without nftables has no such table either.
        Err(error)
            if number == libc::ENOENT
                && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn change(batch: &[u8]) -> io::Result<()> {
    let missing = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    // One batch for each socket: the kernel may answer a refused one more than once.
    Socket::netfilter()?.ok_or_else(missing)?.converse(batch, |_, _, _| ())
}

fn name() -> Vec<u8> {
    [TABLE.as_bytes(), b"\0"].concat()
}

/// A batch of messages, of which the last one is acknowledged.
fn batch(messages: impl IntoIterator<Item = Request>) -> Vec<u8> {
    let border = |kind| Request::with_resource(kind, 0, 0, SUBSYSTEM).bytes();
    let messages = messages.into_iter().flat_map(Request::bytes);
    border(BATCH_BEGIN).into_iter().chain(messages).chain(border(BATCH_END)).collect()
}

fn make(family: Family) -> Vec<u8> {
    let family = family.number();
    let hook = Nest::default()
        .with(attribute::HOOK_NUMBER, &OUTPUT.to_be_bytes())
        .with(attribute::HOOK_PRIORITY, &PRIORITY.to_be_bytes());
    let ct = Nest::default()
        .with(attribute::CT_REGISTER, &REGISTER.to_be_bytes())
        .with(attribute::CT_KEY, &STATUS.to_be_bytes());
    let expression = Nest::default().with(attribute::EXPRESSION_NAME, b"ct\0").nest(attribute::EXPRESSION_DATA, &ct);
    batch([
        Request::nfnetlink(NEW_TABLE, flag::CREATE | flag::EXCLUSIVE, family).with(attribute::TABLE_NAME, &name()),
        Request::nfnetlink(NEW_CHAIN, flag::CREATE, family)
            .with(attribute::CHAIN_TABLE, &name())
            .with(attribute::CHAIN_NAME, CHAIN)
            .nest(attribute::CHAIN_HOOK, &hook)
            .with(attribute::CHAIN_TYPE, b"nat\0"),
        Request::nfnetlink(NEW_RULE, flag::CREATE | flag::ACK, family)
            .with(attribute::RULE_TABLE, &name())
            .with(attribute::RULE_CHAIN, CHAIN)
            .nest(attribute::RULE_EXPRESSIONS, &Nest::default().nest(attribute::LIST_ELEMENT, &expression)),
    ])
}

fn remove(family: Family) -> Vec<u8> {
    batch([Request::nfnetlink(DELETE_TABLE, flag::ACK, family.number()).with(attribute::TABLE_NAME, &name())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Answer, find, read};

    #[test]
    fn a_batch_makes_table_chain_and_rule_at_once() {
        let bytes = make(Family::V6);
        let kinds: Vec<_> = read(&bytes)
            .iter()
            .map(|message| match message {
                Answer::Message { kind, family, .. } => (*kind, *family),
                Answer::End(number) => panic!("an end: {number}"),
            })
            .collect();
        let expected = [(BATCH_BEGIN, 0), (NEW_TABLE, 10), (NEW_CHAIN, 10), (NEW_RULE, 10), (BATCH_END, 0)];
        assert_eq!(kinds, expected);
        assert_eq!(bytes[16..20], [0, 0, 0, 10], "the batch names its subsystem");
    }

    #[test]
    fn the_table_is_removed_by_its_name() {
        let bytes = remove(Family::V4);
        let messages = read(&bytes);
        let [_, Answer::Message { kind, family, attributes }, _] = messages[..] else { panic!("{messages:?}") };
        assert_eq!((kind, family), (DELETE_TABLE, 2));
        assert_eq!(find(attributes, attribute::TABLE_NAME), Some(&b"ballast-nat\0"[..]));
    }
}
