//! What must never be seen: each packet that the decision lets through is held against who accepted which connection.

use lb_common::decide::{Action, Verdict};
use lb_common::outcome::Outcome;

use super::segment::{ACK, FIN, RST, SYN, Segment};

/// What the hooks did with one of the client's connections.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The pod that got its SYN last.
    pub assigned: Option<usize>,
    /// The pod whose SYN+ACK was let through to the client.
    pub answered_by: Option<usize>,
    /// Every pod that got its SYN since it was begun, and from which port.
    pub asked: Vec<(usize, u16)>,
    /// It has entries of its own: until then its SYNs pass for those of the connection before it on its tuple.
    pub begun: bool,
    pub moves: u32,
    /// Its pod has ended it, which the client may not have heard, or an RST, FIN or SYN of another connection passed on the same tuple.
    pub disturbed: bool,
}

/// What came up, so that a run shows that it asked something.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub outcomes: std::collections::BTreeMap<&'static str, u64>,
    pub segments: u64,
    /// Answers that passed as they came, though their pod was asked: a tuple that is used again within seconds may have lost its entries to the
    /// connection before. The client refuses such an answer, and asks once more.
    pub passed_answers: u64,
    pub late_answers: u64,
    /// Answers that won although the SYN had gone to another pod since.
    pub slow_answers: u64,
    /// Segments of connections that the client no longer holds.
    pub strays: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.segments += other.segments;
        self.passed_answers += other.passed_answers;
        self.late_answers += other.late_answers;
        self.slow_answers += other.slow_answers;
        self.strays += other.strays;
    }
}

#[derive(Default)]
pub struct Watch {
    pub stories: Vec<Story>,
    pub seen: Seen,
    pub wrong: Option<String>,
}

/// What is true about a packet at the moment of the decision, told by the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// The client still holds the segment's connection, and its tuple belongs to no later one.
    pub held: bool,
    /// The pod now at the address that the segment is sent to.
    pub target: Option<usize>,
    /// The record named in the verdict may keep flows.
    pub keeps: bool,
    /// The client's peer, or the answering pod, may keep its flows.
    pub peer_keeps: bool,
}

impl Watch {
    pub fn count(&mut self, outcome: Outcome) {
        *self.seen.outcomes.entry(outcome.name()).or_default() += 1;
        self.seen.segments += 1;
    }

    fn violation(&mut self, what: &str, segment: &Segment, verdict: &Verdict<4>, truth: Truth) {
        let story = &self.stories[segment.connection];
        let words = format!("{what}\n{segment:?}\n{verdict:?}\n{truth:?}\n{story:?}");
        self.wrong.get_or_insert(words);
    }

    /// The hook of a client decided over one of its segments.
    pub fn asked(&mut self, segment: &Segment, verdict: &Verdict<4>, truth: Truth) {
        self.count(verdict.outcome);
        let story = self.stories[segment.connection].clone();
        let open = truth.held && truth.peer_keeps && segment.peer.is_some();
        if verdict.action == Action::Refuse && open && !story.disturbed {
            self.violation("an open connection to a pod that stays was refused", segment, verdict, truth);
        }
        if verdict.action != Action::ToBackend {
            return;
        }
        if !truth.keeps {
            self.violation("forwarded to a backend after its deadline", segment, verdict, truth);
        }
        if !truth.held {
            self.seen.strays += 1;
            return;
        }
        if segment.flags & (SYN | ACK | RST) == SYN {
            self.opening(segment, verdict, truth, &story);
        } else if segment.peer.is_some() && segment.peer != truth.target {
            if !truth.peer_keeps || story.disturbed {
                // Its pod is gone, or has ended the connection, which the client has yet to hear. Another pod's answer or a late SYN began
                // anew. That pod refuses the segment: `took` proves it.
                self.seen.strays += 1;
                return;
            }
            self.violation("delivered to a pod that did not accept the connection", segment, verdict, truth);
        }
    }

    fn opening(&mut self, segment: &Segment, verdict: &Verdict<4>, truth: Truth, story: &Story) {
        if verdict.outcome == Outcome::Retried {
            self.stories[segment.connection].moves += 1;
            if story.assigned == truth.target {
                self.violation("a retry that moves nowhere", segment, verdict, truth);
            }
        }
        if matches!(verdict.outcome, Outcome::Selected | Outcome::Probed | Outcome::PortTranslated) {
            // Begun anew, as where the tuple's flow before was over: of the pods before this one nothing is kept, and the client itself
            // refuses what they answer late.
            let story = &mut self.stories[segment.connection];
            story.moves = 0;
            story.asked.clear();
            story.begun = true;
        }
        if story.answered_by.is_some() && story.answered_by != truth.target && truth.peer_keeps && !story.disturbed {
            self.violation("an answered connection was moved", segment, verdict, truth);
        }
        let story = &mut self.stories[segment.connection];
        if story.answered_by != truth.target {
            story.answered_by = None;
        }
        story.assigned = truth.target;
        if story.begun {
            story.asked.extend(truth.target.map(|pod| (pod, verdict.client_port)));
        }
    }

    /// The hook of a client decided over a segment of a pod.
    pub fn answered(&mut self, segment: &Segment, verdict: &Verdict<4>, truth: Truth) {
        self.count(verdict.outcome);
        let accepts = segment.has(SYN);
        let story = self.stories[segment.connection].clone();
        // Another pod's answer went to the client, and no end since.
        let lost = truth.held && !story.disturbed && story.answered_by.is_some_and(|pod| Some(pod) != segment.pod);
        self.seen.late_answers += u64::from(accepts && lost);
        let moved = story.answered_by.is_none() && story.assigned != segment.pod;
        if accepts && truth.held && moved && verdict.action == Action::ToClient {
            self.seen.slow_answers += 1;
        }
        // Reset by the pod, or ended by both: the client does not know it yet.
        let ended = segment.has(RST) && story.answered_by.is_some() || segment.has(FIN);
        if ended && verdict.action == Action::ToClient {
            self.stories[segment.connection].disturbed = true;
        }
        match verdict.action {
            Action::ToClient => {
                if !truth.peer_keeps {
                    self.violation("an answer of a backend after its deadline was forwarded", segment, verdict, truth);
                }
                if lost {
                    self.violation("a late answer was delivered", segment, verdict, truth);
                }
                if accepts && truth.held {
                    self.stories[segment.connection].answered_by = segment.pod;
                }
            }
            Action::Pass
                if accepts
                    && truth.held
                    && !story.disturbed
                    && truth.peer_keeps
                    && segment.pod.is_some_and(|pod| story.asked.contains(&(pod, segment.dst.1))) =>
            {
                self.seen.passed_answers += 1;
            }
            _ => {}
        }
    }

    /// An end of another connection passed on this one's tuple.
    pub fn disturb(&mut self, segment: &Segment, current: Option<usize>) {
        let changes = segment.has(RST) || segment.has(FIN) || segment.has(SYN);
        if let Some(current) = current.filter(|current| changes && *current != segment.connection) {
            self.stories[current].disturbed = true;
        }
    }

    /// A pod took a byte: it must be of the connection that it accepted.
    pub fn took(&mut self, accepted: usize, segment: &Segment) {
        if accepted != segment.connection {
            self.wrong.get_or_insert(format!("a pod took a byte of another connection than {accepted}: {segment:?}"));
        }
    }
}
