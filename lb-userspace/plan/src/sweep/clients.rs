//! Whose connections a round saw: what the programs' counters should say, and the client that has most.

use std::net::{IpAddr, Ipv6Addr};

use lb_common::{
    abi::{Flow, FlowKey, UDP, V4, flow_flags, flow_state},
    client_shares::{COUNTERS, Counters},
};
use serde::{Deserialize, Serialize};

/// A client and its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Client {
    /// Its address; of an external one of IPv6, its network of 64 bits.
    pub client: String,
    pub connections: u64,
}

/// What a round counts of clients.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    key: u32,
    /// By counter, as [`lb_common::client_shares`] says.
    pub counted: Vec<u32>,
    /// The one that has most, of each family.
    largest: [Option<(IpAddr, bool, u32)>; 2],
}

impl Clients {
    /// Nothing is counted yet; `key` is that of the programs' hashes.
    pub fn new(key: u32) -> Self {
        Self { key, counted: vec![0; COUNTERS as usize], ..Self::default() }
    }

    /// An entry of an established connection.
    pub(super) fn see<const N: usize>(&mut self, key: &FlowKey<N>, flow: &Flow<N>)
    where
        IpAddr: From<[u8; N]>,
    {
        // The programs count no adopted connection.
        let is_counted = flow.flags & flow_flags::REPLY == 0 && flow.state != flow_state::ADOPTED;
        if key.protocol == UDP || !is_counted || self.counted.is_empty() {
            return;
        }
        let counters = Counters::of(self.key, &key.src, flow.flags);
        let [_, first, second] = [counters.all, counters.first, counters.second].map(|counter| {
            let count = &mut self.counted[counter as usize];
            *count += 1;
            *count
        });
        let own = first.min(second);
        let largest = &mut self.largest[usize::from(N != V4)];
        if largest.is_none_or(|(.., most)| own > most) {
            *largest = Some((key.src.into(), flow.flags & flow_flags::EXTERNAL != 0, own));
        }
    }

    /// The client that has most connections, of IPv4 and of IPv6.
    pub fn largest(&self) -> [Option<Client>; 2] {
        self.largest.map(|largest| {
            let (address, is_external, connections) = largest?;
            Some(Client { client: name(address, is_external), connections: connections.into() })
        })
    }
}

fn name(address: IpAddr, is_external: bool) -> String {
    match address {
        IpAddr::V6(address) if is_external => {
            format!("{}/64", Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::TCP;

    use super::*;

    fn key<const N: usize>(src: [u8; N]) -> FlowKey<N> {
        FlowKey { src, dst: [9; N], src_port: 1, dst_port: 2, protocol: TCP, pad: [0; 3] }
    }

    #[test]
    fn the_client_with_most_connections_is_named() {
        let mut clients = Clients::new(7);
        for (host, connections) in [(1, 3), (2, 5), (3, 4)] {
            (0..connections).for_each(|_| clients.see(&key([10, 0, 0, host]), &Flow::ZERO));
        }
        let external = |host| FlowKey { src: "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets(), ..key([host; 16]) };
        clients.see(&external(1), &Flow { flags: flow_flags::EXTERNAL, ..Flow::ZERO });
        // Neither an answer's entry nor a datagram's counts.
        clients.see(&key([10, 0, 0, 3]), &Flow { flags: flow_flags::REPLY, ..Flow::ZERO });
        clients.see(&FlowKey { protocol: UDP, ..key([10, 0, 0, 3]) }, &Flow::ZERO);
        let client = |client: &str, connections| Some(Client { client: client.into(), connections });
        assert_eq!(clients.largest(), [client("10.0.0.2", 5), client("2001:db8::/64", 1)]);
        let Counters { all, first, second } = Counters::of(7, &[10, 0, 0, 3], 0);
        assert_eq!([all, first, second].map(|counter| clients.counted[counter as usize]), [12, 4, 4]);
    }
}
