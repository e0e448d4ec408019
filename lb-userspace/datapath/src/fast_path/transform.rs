//! Whether packets are transformed on their way (IPsec): the kernel is asked how many policies there are. The messages are those of its
//! `xfrm.h`.

use std::{
    io::{self, Read as _},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

/// How long the kernel may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The answer: header, flags, and attributes of a few numbers each.
const BUFFER: usize = 512;
const HEADER: usize = 16;
/// Flags, before the attributes.
const FLAGS: usize = 4;
const REQUEST_BYTES: u32 = 20;
const _: () = assert!(REQUEST_BYTES as usize == HEADER + FLAGS);
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// `XFRM_MSG_NEWSPDINFO`, `XFRM_MSG_GETSPDINFO`.
const NEW_INFO: u16 = 0x24;
const GET_INFO: u16 = 0x25;
/// `XFRMA_SPD_INFO`: numbers of policies in, out and forward, then those of sockets, which no forwarded packet meets.
const INFO: u16 = 1;
const COUNTS: usize = 3;

/// What of it packets would skip, in words.
pub(super) fn skipped() -> Option<String> {
    match policies() {
        Ok(0) => None,
        Ok(count) => Some(format!("{count} IPsec policies (ip xfrm policy)")),
        // Who cannot look must not skip.
        Err(error) => Some(format!("not known: IPsec policies cannot be counted: {error}")),
    }
}

fn policies() -> io::Result<u32> {
    let protocol = Protocol::from(libc::NETLINK_XFRM);
    let mut socket = match Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)) {
        // A kernel without it.
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(0),
        socket => socket?,
    };
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(&request())?;
    let mut buffer = [0; BUFFER];
    let length = socket.read(&mut buffer)?;
    count(&buffer[..length])
}

fn request() -> Vec<u8> {
    let (mut bytes, zero) = (REQUEST_BYTES.to_ne_bytes().to_vec(), 0_u32.to_ne_bytes());
    bytes.extend([GET_INFO.to_ne_bytes(), REQUEST.to_ne_bytes()].concat());
    // Sequence number, port, and flags.
    bytes.extend([zero; 3].concat());
    bytes
}

/// The number of policies in the answer.
fn count(answer: &[u8]) -> io::Result<u32> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "the answer is none");
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    match half(4) {
        Some(NEW_INFO) => {}
        Some(ERROR) => {
            let number = word(HEADER).ok_or_else(short)?;
            return Err(io::Error::from_raw_os_error(number.wrapping_neg().cast_signed()));
        }
        _ => return Err(short()),
    }
    let mut at = HEADER + FLAGS;
    while let (Some(length), Some(kind)) = (half(at), half(at + 2)) {
        if kind == INFO {
            let counts = (0..COUNTS).map(|index| word(at + 4 + 4 * index));
            return counts.sum::<Option<u32>>().ok_or_else(short);
        }
        at += usize::from(length).max(4).next_multiple_of(4);
    }
    Err(short())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, rest: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn policies_of_all_three_directions_are_counted() {
        let attribute = u32::from_ne_bytes([28, 0, 1, 0]);
        assert_eq!(count(&answer(NEW_INFO, &[0, attribute, 1, 2, 3, 9, 9, 9])).unwrap(), 6);
        // Another attribute before it.
        let other = u32::from_ne_bytes([12, 0, 2, 0]);
        assert_eq!(count(&answer(NEW_INFO, &[0, other, 7, 7, attribute, 1, 0, 0, 9, 9, 9])).unwrap(), 1);
        assert!(count(&answer(NEW_INFO, &[0])).is_err());
        let refused = count(&answer(ERROR, &[1_u32.wrapping_neg()])).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(1));
    }
}
