//! Names of the tables and chains of nftables in this network namespace, asked of the kernel itself: no `nft` is needed.

use std::{
    io::{self, Read as _},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

/// Of include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h.
const SUBSYSTEM: u16 = 10;
const GET_CHAIN: u16 = 4;
const GET_TABLE: u16 = 1;
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
/// Flags and types of include/uapi/linux/netlink.h.
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Lengths of `struct nlmsghdr` with `struct nfgenmsg`, and of an attribute's header.
const HEADERS: usize = 20;
const ATTRIBUTE: usize = 4;
/// How long the kernel may take for a part of an answer, how long the parts are, and how many there are at most.
const PATIENCE: Duration = Duration::from_secs(2);
const BUFFER: usize = 65_536;
const MOST_PARTS: usize = 65_536;

/// A table or one of its chains; a table has an empty chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub table: String,
    pub chain: String,
}

/// All of them. An error where the kernel has no nftables, or tells nobody.
pub(super) fn list() -> io::Result<Vec<Named>> {
    let mut all = dump(GET_TABLE, TABLE_NAME, None)?;
    all.extend(dump(GET_CHAIN, CHAIN_TABLE, Some(CHAIN_NAME))?);
    Ok(all)
}

fn dump(question: u16, table: u16, chain: Option<u16>) -> io::Result<Vec<Named>> {
    let protocol = Protocol::from(libc::NETLINK_NETFILTER);
    let mut socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut request = vec![0; HEADERS];
    request[0] = u8::try_from(HEADERS).map_err(io::Error::other)?;
    request[4..6].copy_from_slice(&(SUBSYSTEM << 8 | question).to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    socket.send(&request)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    for _ in 0..MOST_PARTS {
        let length = socket.read(&mut buffer)?;
        if take(&buffer[..length], table, chain, &mut found)? {
            return Ok(found);
        }
    }
    Err(io::Error::other("the list has no end"))
}

/// Takes the messages of one part in; `true`: it was the last one.
fn take(mut part: &[u8], table: u16, chain: Option<u16>, found: &mut Vec<Named>) -> io::Result<bool> {
    while let Some((length, kind)) = word(part, 0).zip(half(part, 4)) {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let message = part.get(..length).ok_or_else(|| io::Error::other("a message that is cut off"))?;
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let number = word(message, 16).unwrap_or_default().cast_signed();
                return Err(io::Error::from_raw_os_error(-number));
            }
            _ => {
                let attributes = message.get(HEADERS..).unwrap_or_default();
                let name = |wanted| text(attributes, wanted).unwrap_or_default();
                found.push(Named { table: name(table), chain: chain.map(name).unwrap_or_default() });
            }
        }
        part = part.get(length.next_multiple_of(4).max(1)..).unwrap_or_default();
    }
    Ok(false)
}

/// The text of an attribute.
fn text(mut attributes: &[u8], wanted: u16) -> Option<String> {
    while let Some((length, kind)) = half(attributes, 0).zip(half(attributes, 2)) {
        let length = usize::from(length);
        if kind == wanted {
            let value = attributes.get(ATTRIBUTE..length)?;
            return Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned());
        }
        attributes = attributes.get(length.next_multiple_of(4).max(ATTRIBUTE)..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, text: &str) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE + text.len() + 1).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(text.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADERS + body.len()).expect("short").to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADERS, 0);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn names_are_read_and_the_end_is_found() {
        let chain = [attribute(CHAIN_TABLE, "nat"), attribute(2, "?"), attribute(CHAIN_NAME, "KUBE-SERVICES")].concat();
        let part = [message(0xa03, &chain), message(DONE, &[0; 4])].concat();
        let mut found = Vec::new();
        assert!(take(&part, CHAIN_TABLE, Some(CHAIN_NAME), &mut found).expect("well formed"));
        assert_eq!(found, [Named { table: "nat".to_owned(), chain: "KUBE-SERVICES".to_owned() }]);
    }

    #[test]
    fn what_is_cut_off_is_an_error_and_never_a_panic() {
        let whole = message(0xa03, &attribute(TABLE_NAME, "kube-proxy"));
        for length in 0..whole.len() {
            let mut found = Vec::new();
            let taken = take(&whole[..length], TABLE_NAME, None, &mut found);
            assert!(found.is_empty() && taken.is_ok_and(|last| !last) == (length < 6), "{length}");
        }
        assert!(take(&message(ERROR, &[]), TABLE_NAME, None, &mut Vec::new()).is_err());
    }
}
