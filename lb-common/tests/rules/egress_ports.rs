//! The node's own NAT and its processes may use the number of a node port as their own port.

use lb_common::abi::{UDP, frontend_kind};
use lb_common::decide::{Action, Hook};
use lb_common::outcome::Outcome;
use lb_common::plain::tuple;

use crate::outside::{CLIENT, FROM_THE_WIRE, NODE, NODE_PORT, POD, REMOTE, from, serving};

#[test]
fn answers_to_datagrams_from_the_number_of_a_node_port_pass_to_the_nodes_stack() {
    let key = tuple(UDP, (NODE, NODE_PORT), (REMOTE, 53));
    for (from_node, hook) in [false, true].into_iter().flat_map(|from_node| FROM_THE_WIRE.map(|hook| (from_node, hook)))
    {
        let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
        tables.is_from_node = from_node;
        for _ in 0..3 {
            assert_eq!(tables.ask(key, 0, Hook::NODE_OUT).action, Action::Pass);
            let answer = tables.ask(key.reversed(), 0, hook);
            assert_eq!((answer.address, answer.port), (REMOTE, 53), "{answer:?}");
            assert_eq!((answer.client, answer.client_port), (NODE, NODE_PORT), "{answer:?}");
            assert_eq!(answer.action, Action::ToClient);
        }
        let other = tables.ask(from(CLIENT, 40_000, UDP), 0, hook);
        assert_eq!((other.action, other.outcome), (Action::ToBackend, Outcome::Masqueraded), "clients are served");
        // What answers a client of the service leaves from the same port, and makes no entry.
        let entries = tables.flows.len() + tables.half_open.len();
        let back = tuple(UDP, (NODE, NODE_PORT), (CLIENT, 40_000));
        assert_eq!(tables.ask(back, 0, Hook::NODE_OUT).action, Action::Pass);
        for (address, port) in [(NODE, NODE_PORT + 1), (POD, NODE_PORT)] {
            assert_eq!(tables.ask(tuple(UDP, (address, port), (REMOTE, 53)), 0, Hook::NODE_OUT).action, Action::Pass);
        }
        assert_eq!(tables.flows.len() + tables.half_open.len(), entries);
    }
}
