//! Messages of nfnetlink: the two requests, and what the kernel answers.

const HEADER: usize = 16;
/// `struct nfgenmsg`: family, version, resource.
const GENERIC: usize = 4;
const REQUEST_BYTES: u32 = 20;
const _: () = assert!(REQUEST_BYTES as usize == HEADER + GENERIC);
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_DUMP`.
const REQUEST: u16 = 0x001;
const ACK: u16 = 0x004;
const DUMP: u16 = 0x300;
const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_GENERATION: u16 = 15;
const GET_GENERATION: u16 = 16;
const TYPE_MASK: u16 = 0x3fff;

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
    /// The end of an answer, with an error number or 0.
    End(i32),
}

pub(super) fn get_generation() -> Vec<u8> {
    // The answer and the end of it.
    request(GET_GENERATION, ACK)
}

pub(super) fn list_chains() -> Vec<u8> {
    request(GET_CHAIN, DUMP)
}

fn request(kind: u16, flags: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + GENERIC);
    bytes.extend(REQUEST_BYTES.to_ne_bytes());
    bytes.extend((SUBSYSTEM | kind).to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    // All families, version 0.
    bytes.extend([0; GENERIC]);
    bytes
}

/// The messages of one part of an answer. What is no message of ours is left out.
pub(super) fn read(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let (Some(length), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes.get(HEADER..length) else { break };
        match i32::from(kind) {
            // A list that was cut ends with a number, too.
            libc::NLMSG_DONE => {
                answers.push(Answer::End(word(message, 0).map_or(0, |number| number.cast_signed().abs())));
            }
            libc::NLMSG_ERROR => {
                let number = word(message, 0).map_or(libc::EPROTO, |number| number.cast_signed().abs());
                answers.push(Answer::End(number));
            }
            _ => answers.extend(of_netfilter(kind, message)),
        }
        let Some(rest) = bytes.get(length.next_multiple_of(4)..) else { break };
        bytes = rest;
    }
    answers
}

fn of_netfilter(kind: u16, message: &[u8]) -> Option<Answer> {
    let family = *message.first()?;
    let attributes = message.get(GENERIC..)?;
    match kind.checked_sub(SUBSYSTEM)? {
        NEW_GENERATION => {
            let id = find(attributes, GENERATION_ID).and_then(big)?;
            Some(Answer::Generation(id))
        }
        NEW_CHAIN => {
            let text = |kind| {
                find(attributes, kind).map(|text| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
            };
            Some(Answer::Chain(Chain {
                family,
                table: text(CHAIN_TABLE).unwrap_or_default(),
                name: text(CHAIN_NAME).unwrap_or_default(),
                hook: find(attributes, CHAIN_HOOK).and_then(|hook| find(hook, HOOK_NUMBER)).and_then(big),
                rules: find(attributes, CHAIN_USE).and_then(big).unwrap_or(0),
                drops: find(attributes, CHAIN_POLICY).and_then(big) == Some(POLICY_DROP),
            }))
        }
        _ => None,
    }
}

/// What the first attribute of this kind holds.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (usize::from(half(bytes, 0)?), half(bytes, 2)?);
        if kind & TYPE_MASK == wanted {
            return bytes.get(4..length);
        }
        bytes = bytes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// nfnetlink's numbers are in network order.
fn big(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).expect("short");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_chain_is_read_as_the_kernel_writes_it() {
        let hook = [attribute(HOOK_NUMBER, &2_u32.to_be_bytes()), attribute(2, &0_u32.to_be_bytes())].concat();
        let mut body = vec![2, 0, 0, 0];
        body.extend(attribute(CHAIN_TABLE, b"filter\0"));
        body.extend(attribute(CHAIN_NAME, b"FORWARD\0"));
        body.extend(attribute(CHAIN_HOOK | 0x8000, &hook));
        body.extend(attribute(CHAIN_POLICY, &0_u32.to_be_bytes()));
        body.extend(attribute(CHAIN_USE, &3_u32.to_be_bytes()));
        let mut bytes = message(SUBSYSTEM | NEW_CHAIN, &body);
        bytes.extend(message(3, &0_u32.to_ne_bytes()));
        let chain =
            Chain { family: 2, table: "filter".into(), name: "FORWARD".into(), hook: Some(2), rules: 3, drops: true };
        assert_eq!(chain.text(), "nftables chain ip filter FORWARD");
        assert_eq!(read(&bytes), [Answer::Chain(chain), Answer::End(0)]);
    }

    #[test]
    fn errors_end_an_answer_and_cut_messages_are_left_out() {
        assert_eq!(read(&message(2, &(-22_i32).to_ne_bytes())), [Answer::End(22)]);
        let whole =
            message(SUBSYSTEM | NEW_GENERATION, &[[0; 4].to_vec(), attribute(1, &7_u32.to_be_bytes())].concat());
        assert_eq!(read(&whole), [Answer::Generation(7)]);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), []);
        }
    }
}
