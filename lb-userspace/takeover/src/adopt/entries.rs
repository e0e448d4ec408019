//! The two flow entries of an adopted connection: pure functions.

use std::net::{IpAddr, SocketAddr};

use lb_common::abi::{Flow, FlowKey, fin, flow_flags, flow_state, tag};
use lb_common::decide::pair_key;

use crate::conntrack::{Entry, Tuple};

/// The key of a tuple. `None`: it is of another family.
pub(super) fn key<const N: usize>(tuple: &Tuple) -> Option<FlowKey<N>> {
    Some(FlowKey {
        src: octets(tuple.src.ip())?,
        dst: octets(tuple.dst.ip())?,
        src_port: tuple.src.port(),
        dst_port: tuple.dst.port(),
        protocol: tuple.protocol,
        pad: [0; 3],
    })
}

pub(super) fn octets<const N: usize>(address: IpAddr) -> Option<[u8; N]> {
    match address {
        IpAddr::V4(address) => address.octets().as_slice().try_into().ok(),
        IpAddr::V6(address) => address.octets().as_slice().try_into().ok(),
    }
}

/// The tuple of a key.
pub(super) fn tuple<const N: usize>(key: &FlowKey<N>) -> Tuple
where
    IpAddr: From<[u8; N]>,
{
    Tuple {
        src: SocketAddr::new(key.src.into(), key.src_port),
        dst: SocketAddr::new(key.dst.into(), key.dst_port),
        protocol: key.protocol,
    }
}

/// Original and reply entry, each with its key. Each leads to the opposite one, as those of Ballast's own connections do.
pub(super) fn pair<const N: usize>(entry: &Entry, now_s: u32) -> Option<[(FlowKey<N>, Flow<N>); 2]> {
    let (original, reply) = (key(&entry.original)?, key::<N>(&entry.reply)?);
    let over = if entry.is_over() { fin::SENT } else { 0 };
    let flow = |key: &FlowKey<N>, opposite: &FlowKey<N>, flags: u8| {
        let is_reply = flags & flow_flags::REPLY != 0;
        // A reply's new source is the service, and its new destination the client: the original tuple reversed.
        let (address, port, client, client_port) = if is_reply {
            (opposite.dst, opposite.dst_port, opposite.src, opposite.src_port)
        } else {
            (opposite.src, opposite.src_port, opposite.dst, opposite.dst_port)
        };
        Flow {
            tag: tag(key),
            seen_s: now_s,
            since_s: now_s,
            address,
            client,
            port,
            client_port,
            state: flow_state::ADOPTED,
            flags,
            fin: over,
            opposite_fin: over,
            ..Flow::ZERO
        }
    };
    let pair = [(original, flow(&original, &reply, 0)), (reply, flow(&reply, &original, flow_flags::REPLY))];
    debug_assert!(pair_key(&original, &pair[0].1) == reply && pair_key(&reply, &pair[1].1) == original);
    Some(pair)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_common::abi::{SCTP, TCP, UDP, V4, V6};

    use super::*;
    use crate::conntrack::{status, tcp_state};

    fn entry(original: [&str; 2], reply: [&str; 2], protocol: u8, state: Option<u8>) -> Entry {
        let tuple = |[src, dst]: [&str; 2]| Tuple { src: src.parse().unwrap(), dst: dst.parse().unwrap(), protocol };
        let (original, reply) = (tuple(original), tuple(reply));
        Entry { original, reply, status: status::DST_NAT, state, timeout: Duration::from_mins(2) }
    }

    #[test]
    fn both_directions_lead_to_each_other() {
        let masqueraded = entry(
            ["198.51.100.7:40000", "192.0.2.2:30080"],
            ["10.0.1.9:8080", "192.0.2.2:61000"],
            TCP,
            Some(tcp_state::ESTABLISHED),
        );
        let [(original, forward), (reply, back)] = pair::<V4>(&masqueraded, 7).unwrap();
        assert_eq!((tuple(&original), tuple(&reply)), (masqueraded.original, masqueraded.reply));
        assert_eq!((forward.tag, back.tag), (tag(&original), tag(&reply)));
        assert_eq!(pair_key(&original, &forward), reply);
        assert_eq!(pair_key(&reply, &back), original);
        for flow in [forward, back] {
            assert_eq!((flow.state, flow.backend, flow.seen_s, flow.fin), (flow_state::ADOPTED, 0, 7, 0));
        }
        assert_eq!((forward.flags, back.flags), (0, flow_flags::REPLY));
        assert!(pair::<V6>(&masqueraded, 7).is_none(), "another family");
    }

    #[test]
    fn a_connection_that_has_ended_gives_its_tuple_to_a_new_one() {
        let [original, reply] = [["[fd00::7]:4000", "[fd00:1::1]:80"], ["[fd00::9]:8080", "[fd00::7]:4000"]];
        let fin_of = |protocol, state| {
            let [(_, forward), _] = pair::<V6>(&entry(original, reply, protocol, state), 1).unwrap();
            (forward.fin, forward.opposite_fin)
        };
        assert_eq!(fin_of(TCP, Some(tcp_state::TIME_WAIT)), (fin::SENT, fin::SENT));
        assert_eq!(fin_of(TCP, Some(tcp_state::CLOSE)), (fin::SENT, fin::SENT));
        assert_eq!(fin_of(TCP, Some(tcp_state::ESTABLISHED)), (0, 0));
        assert_eq!(fin_of(SCTP, Some(1)), (fin::SENT, fin::SENT));
        assert_eq!(fin_of(UDP, None), (0, 0));
    }
}
