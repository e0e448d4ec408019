//! The book of a restarted agent, from what the tables hold: ids, generations, ranges, states and deadlines go on.

use lb_common::abi::{self, backend_state};

use super::{BackendId, BackendRecord, Book, Capacities, Frontend, PortKey, Range};
use crate::{
    maps::from_chars,
    model::{ObjectName, Protocol},
};

/// What was read from the tables.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub names: Vec<(u32, abi::ServiceName)>,
    pub frontends: Vec<(Frontend, abi::Service)>,
    /// Every record that was ever used; free ones have a generation.
    pub backends: Vec<(BackendId, BackendRecord)>,
    /// The slots of every range that a frontend leads to.
    pub slots: Vec<(Range, Vec<abi::Slot>)>,
}

/// The book of tables with this content. Ranges that no frontend leads to are free: a restart takes longer than any program
/// that may still read one.
pub fn restore(capacities: Capacities, loaded: Loaded) -> Book {
    let mut book = Book::new(capacities);
    for (id, name) in loaded.names {
        if let Some(key) = key_of(&name) {
            book.service_mut(id, &key).name = Some(name);
        }
    }
    for (range, slots) in loaded.slots {
        // One that overlaps another is no range of ours: it stays out, so that its frontend gets a new one.
        if range.count > 0 && range.count as usize == slots.len() {
            book.put_range(range.base, slots);
        }
    }
    for (frontend, entry) in loaded.frontends {
        book.put_frontend(frontend, entry, &nameless(entry.id));
    }
    for (id, record) in loaded.backends {
        if record.state == backend_state::FREE {
            book.put_free_generation(id, record.generation);
        } else {
            book.put_backend(id, record, &nameless(record.service));
        }
    }
    book
}

fn key_of(name: &abi::ServiceName) -> Option<PortKey> {
    let protocol = Protocol::from_number(name.protocol)?;
    let service = ObjectName::new(from_chars(&name.namespace), from_chars(&name.name));
    Some(PortKey { service, port: name.port, protocol })
}

/// A service port whose name was lost: nobody wants it, so it is removed and its backends drain.
pub(super) fn nameless(id: u32) -> PortKey {
    PortKey { service: ObjectName::new("", format!("#{id}")), port: 0, protocol: Protocol::Tcp }
}
