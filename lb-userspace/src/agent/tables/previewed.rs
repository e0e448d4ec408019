//! What a change would do: its inputs, and the tables that it is compared with. Nothing is written.

use super::TableOwner;
use crate::agent::clock;
use crate::agent::previews::{Compared, Present, Request};

impl TableOwner {
    /// Answers a part of a preview.
    pub fn preview(&self, request: Request) {
        // The client may have gone away.
        match request {
            Request::Present(reply) => {
                let snapshot = self.snapshot.clone();
                let inputs = || self.programmer.inputs(&self.facts);
                drop(reply.send(snapshot.map(|snapshot| Present { snapshot, inputs: inputs() })));
            }
            Request::Compare { preview, ports, reply } => {
                let (programmed, now) = (self.programmer.programmed(), clock::monotonic());
                let keys = preview.ports().get(ports).unwrap_or_default();
                let effects = keys.iter().filter_map(|key| preview.effect(key, programmed, now)).collect();
                let no_room = keys.iter().filter_map(|key| preview.no_room(key, programmed, now)).collect();
                drop(reply.send(Compared { effects, no_room }));
            }
        }
    }
}
