//! An nftables table of Ballast that keeps NAT and connection tracking at work in the kernel.
//!
//! The kernel translates the packets of a tracked connection as long as any NAT chain exists. With the last chain of another proxy it would
//! stop. The table has one chain of type NAT for each family. The one rule in it refers to connection tracking, which the kernel would
//! switch off with the last such rule. The rule changes no packet, and its hook (output) keeps no packet from the fast path.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::Family;
use lb_netlink::{
    Attributes, Message, Socket,
    nf_tables::{self, DELETE_TABLE, GET_TABLE, NEW_CHAIN, NEW_RULE, NEW_TABLE, attribute},
    unless,
};

/// Name of the table, of `ip` and of `ip6`.
pub const TABLE: &str = "ballast-nat";

const CHAIN: &str = "output";
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
    let made = Family::ALL.map(|family| unless(libc::EEXIST, nf_tables::apply(make(family))));
    let [v4, v6] = made;
    if let Err(error) = &v6 {
        tracing::debug!("table ip6 {TABLE}: {error}");
    }
    v4.map(drop)
}

/// Removes the table; `false`: there is none. Without another NAT chain the kernel translates no connection any more.
pub fn release() -> io::Result<bool> {
    let [v4, v6] = Family::ALL.map(|family| unless_missing(nf_tables::apply(vec![(0, named(DELETE_TABLE, family))])));
    Ok(v4? | v6?)
}

/// Whether the table is there.
pub fn is_kept() -> io::Result<bool> {
    let Some(mut socket) = Socket::netfilter()? else { return Ok(false) };
    let mut is_there = false;
    for family in Family::ALL {
        is_there |= unless_missing(socket.change(0, named(GET_TABLE, family)))?;
    }
    Ok(is_there)
}

/// `false`: there is no such table. A kernel without nftables has none either.
fn unless_missing(result: io::Result<()>) -> io::Result<bool> {
    let is_without =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT));
    if result.as_ref().is_err_and(is_without) { Ok(false) } else { unless(libc::ENOENT, result) }
}

/// A message with the name of the table and nothing else.
fn named(kind: u16, family: Family) -> Message {
    Message::nfnetlink(kind, family.number(), Attributes::default().text(attribute::TABLE_NAME, TABLE))
}

fn make(family: Family) -> Vec<(u16, Message)> {
    let hook = Attributes::default()
        .with(attribute::HOOK_NUMBER, &OUTPUT.to_be_bytes())
        .with(attribute::HOOK_PRIORITY, &PRIORITY.to_be_bytes());
    let ct = Attributes::default()
        .with(attribute::CT_REGISTER, &REGISTER.to_be_bytes())
        .with(attribute::CT_KEY, &STATUS.to_be_bytes());
    let expression = Attributes::default().text(attribute::EXPRESSION_NAME, "ct").nest(attribute::EXPRESSION_DATA, &ct);
    let chain = Attributes::default()
        .text(attribute::CHAIN_TABLE, TABLE)
        .text(attribute::CHAIN_NAME, CHAIN)
        .nest(attribute::CHAIN_HOOK, &hook)
        .text(attribute::CHAIN_TYPE, "nat");
    let rule = Attributes::default()
        .text(attribute::RULE_TABLE, TABLE)
        .text(attribute::RULE_CHAIN, CHAIN)
        .nest(attribute::RULE_EXPRESSIONS, &Attributes::default().nest(attribute::LIST_ELEMENT, &expression));
    vec![
        (NLM_F_CREATE | NLM_F_EXCL, named(NEW_TABLE, family)),
        (NLM_F_CREATE, Message::nfnetlink(NEW_CHAIN, family.number(), chain)),
        (NLM_F_CREATE, Message::nfnetlink(NEW_RULE, family.number(), rule)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_netlink::text;

    #[test]
    fn table_chain_and_rule_are_made_at_once() {
        let messages = make(Family::V6);
        let kinds: Vec<_> = messages.iter().map(|(_, message)| (message.kind, message.family())).collect();
        assert_eq!(kinds, [(NEW_TABLE, 10), (NEW_CHAIN, 10), (NEW_RULE, 10)]);
        assert!(messages.iter().all(|(_, message)| text(&message.attributes, 1) == "ballast-nat"));
    }
}
