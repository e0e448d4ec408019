//! The hooks that a packet passes: the decision there, what the test knows to be true, and the packet's further way.

use lb_common::abi::{FlowKey, TCP};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide};

use super::segment::Segment;
use super::simulation::{Event, Simulation};
use super::watch::Truth;

impl Simulation {
    /// A client's segment at its own link, or at the bridge.
    pub(super) fn request(&mut self, segment: Segment) {
        let hook = if self.network.catch_all { Hook::BRIDGE_IN } else { Hook::POD_IN };
        let current = self.current.get(&(segment.src, segment.dst)).copied();
        let verdict = self.decide(&segment, hook);
        let target = self.places.get(&(verdict.address, verdict.port)).copied();
        let held = current == Some(segment.connection) && self.connections[segment.connection].is_held();
        let peer = segment.peer.or(self.watch.stories[segment.connection].answered_by);
        let truth = Truth {
            held,
            target,
            keeps: self.agent.keeps(verdict.backend, self.now_ms),
            peer_keeps: peer.is_some_and(|pod| self.agent.keeps_pod(pod, segment.dst, self.now_ms)),
        };
        self.watch.asked(&segment, &verdict, truth);
        self.watch.disturb(&segment, current);
        self.go_on(segment, &verdict, false);
    }

    /// A pod's segment: at the pod's own link first, then at the client's.
    pub(super) fn answer(&mut self, segment: Segment) {
        if segment.pod.is_some_and(|pod| self.places[&self.pods[pod].address] != pod) {
            return; // Its pod is no more: nobody could tell it from one of the address's new pod.
        }
        let mut verdict = self.decide(&segment, Hook::POD_IN);
        if verdict.action == Action::Pass && !self.network.catch_all {
            verdict = self.decide(&segment, Hook::POD_OUT);
        }
        let connection = &self.connections[segment.connection];
        let current = self.current.get(&(connection.client, connection.service)).copied();
        let (held, service) = (current == Some(segment.connection) && connection.is_held(), connection.service);
        // The pod's tuple may be another connection's by now, by another VIP. The segment then reaches that connection's socket, and its
        // own hears nothing.
        let met = ((segment.dst.0, verdict.client_port), (verdict.address, verdict.port));
        let strays = verdict.action == Action::ToClient && met != (connection.client, service);
        let truth = Truth {
            held: held && !strays,
            target: None,
            keeps: true,
            peer_keeps: segment.pod.is_some_and(|pod| self.agent.keeps_pod(pod, service, self.now_ms)),
        };
        self.watch.answered(&segment, &verdict, truth);
        self.watch.disturb(&segment, current);
        if verdict.action == Action::ToClient {
            self.watch.disturb(&segment, self.current.get(&met).copied());
        }
        self.go_on(segment, &verdict, true);
    }

    fn go_on(&mut self, segment: Segment, verdict: &Verdict<4>, from_pod: bool) {
        let onward = |segment| if from_pod { Event::AtClient(segment) } else { Event::AtPod(segment) };
        match verdict.action {
            Action::Pass => self.send(onward(segment), 0),
            Action::ToBackend => {
                let (src, dst) = ((segment.src.0, verdict.client_port), (verdict.address, verdict.port));
                self.send(Event::AtPod(Segment { src, dst, ..segment }), 0);
            }
            Action::ToClient => {
                let (src, dst) = ((verdict.address, verdict.port), (segment.dst.0, verdict.client_port));
                self.send(Event::AtClient(Segment { src, dst, ..segment }), 0);
            }
            Action::Refuse => {
                let Some(reset) = segment.reset() else { return };
                let reset = Segment { pod: None, peer: None, ..reset };
                self.send(if from_pod { Event::AtPod(reset) } else { Event::AtClient(reset) }, 0);
            }
            Action::Drop => {}
        }
    }

    fn decide(&mut self, segment: &Segment, hook: Hook) -> Verdict<4> {
        let (src, dst) = (segment.src, segment.dst);
        let key = FlowKey { src: src.0, dst: dst.0, src_port: src.1, dst_port: dst.1, protocol: TCP, pad: [0; 3] };
        let mut work = Work::new(Packet { seq: segment.seq, ack: segment.ack, ..Packet::new(key, segment.flags) });
        decide(&mut self.tables, &mut work, hook);
        for (_, outcome) in self.tables.notes.drain(..) {
            *self.watch.seen.outcomes.entry(outcome.name()).or_default() += 1;
        }
        work.verdict
    }
}
