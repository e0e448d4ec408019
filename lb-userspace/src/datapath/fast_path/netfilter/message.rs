//! Messages of nfnetlink: the two requests, and what the kernel answers.

use crate::netlink::{Request, big32, find, flag};

const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
const GET_GENERATION: u16 = SUBSYSTEM | 16;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const HOOK_NUMBER: u16 = 1;
const GENERATION_ID: u16 = 1;
const POLICY_DROP: u32 = 0;

/// A chain, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
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
    pub fn text(&self) -> String {
        let family = match i32::from(self.family) {
            libc::NFPROTO_INET => "inet",
            libc::NFPROTO_IPV4 => "ip",
            libc::NFPROTO_IPV6 => "ip6",
            libc::NFPROTO_BRIDGE => "bridge",
            libc::NFPROTO_NETDEV => "netdev",
            _ => "other",
        };
        format!("nftables chain {family} {} {}", self.table, self.name)
    }
}

/// A message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Generation(u32),
    Chain(Chain),
}

pub(super) fn get_generation() -> Vec<u8> {
    // The answer and the end of it.
    Request::nfnetlink(GET_GENERATION, flag::ACK, 0).bytes()
}

pub(super) fn list_chains() -> Vec<u8> {
    Request::nfnetlink(GET_CHAIN, flag::DUMP, 0).bytes()
}

/// What a message of this kind says; `None`: it is no message of ours, or cut off.
pub(super) fn read(kind: u16, family: u8, attributes: &[u8]) -> Option<Answer> {
    match kind {
        NEW_GENERATION => find(attributes, GENERATION_ID).and_then(big32).map(Answer::Generation),
        NEW_CHAIN => {
            let text = |kind| {
                find(attributes, kind).map(|text| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
            };
            Some(Answer::Chain(Chain {
                family,
                table: text(CHAIN_TABLE).unwrap_or_default(),
                name: text(CHAIN_NAME).unwrap_or_default(),
                hook: find(attributes, CHAIN_HOOK).and_then(|hook| find(hook, HOOK_NUMBER)).and_then(big32),
                rules: find(attributes, CHAIN_USE).and_then(big32).unwrap_or(0),
                drops: find(attributes, CHAIN_POLICY).and_then(big32) == Some(POLICY_DROP),
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{self, Nest};

    #[test]
    fn a_chain_is_read_as_the_kernel_writes_it() {
        let hook = Nest::default().with(HOOK_NUMBER, &2_u32.to_be_bytes()).with(2, &0_u32.to_be_bytes());
        let bytes = Request::nfnetlink(NEW_CHAIN, 0, 2)
            .with(CHAIN_TABLE, b"filter\0")
            .with(CHAIN_NAME, b"FORWARD\0")
            .nest(CHAIN_HOOK, &hook)
            .with(CHAIN_POLICY, &0_u32.to_be_bytes())
            .with(CHAIN_USE, &3_u32.to_be_bytes())
            .bytes();
        let chain =
            Chain { family: 2, table: "filter".into(), name: "FORWARD".into(), hook: Some(2), rules: 3, drops: true };
        assert_eq!(chain.text(), "nftables chain ip filter FORWARD");
        let messages = netlink::read(&bytes);
        let [netlink::Answer::Message { kind, family, attributes }] = messages[..] else { panic!("{messages:?}") };
        assert_eq!(read(kind, family, attributes), Some(Answer::Chain(chain)));
    }

    #[test]
    fn a_generation_is_read_unless_it_is_cut() {
        let bytes = Request::nfnetlink(NEW_GENERATION, 0, 0).with(GENERATION_ID, &7_u32.to_be_bytes()).bytes();
        let attributes = &bytes[netlink::HEADER + 4..];
        assert_eq!(read(NEW_GENERATION, 0, attributes), Some(Answer::Generation(7)));
        for length in 0..attributes.len() {
            assert_eq!(read(NEW_GENERATION, 0, &attributes[..length]), None);
        }
        assert_eq!(read(NEW_GENERATION + 1, 0, attributes), None);
    }
}
