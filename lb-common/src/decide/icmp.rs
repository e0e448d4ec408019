//! ICMP errors about a flow's packet: translated with what they quote, both ways.
//!
//! The error travels against the packet that it quotes, so it goes the way of the quoted tuple reversed, which is what `work.packet`
//! holds. What a verdict writes into a packet of that tuple is written into the quotation reversed.

use super::outlier;
use super::packet::{Hook, Now};
use super::related::{Related, translate};
use super::tables::Tables;
use super::verdict::Action;
use super::work::Work;
use crate::abi::{UDP, flow_flags};
use crate::outcome::Outcome;
use crate::state::tcp_flag;

/// What the error says, beside the tuple that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The destination cannot be reached (not: the packet was too big, or took too many hops).
    pub is_refusal: bool,
    /// It comes from the quoted packet's destination itself.
    pub from_destination: bool,
    /// TCP: the sequence number of the quoted segment; SCTP: its verification tag; else 0.
    pub sequence: u32,
}

/// Makes the packet in `work` the RST that a refusal stands for which quotes a connection's first segment: for [`super::open`] and
/// [`super::retry`], which know the half-open flows. [`refused`] says what came of it.
#[inline(always)]
pub fn as_refusal<const N: usize>(work: &mut Work<N>, sequence: u32) {
    work.verdict.pass();
    work.packet.tcp_flags = tcp_flag::RST | tcp_flag::ACK;
    work.packet.ack = sequence.wrapping_add(1);
}

/// What the steps said of a refusal: `true`, if it was a half-open flow's, and the verdict holds for the error.
#[inline(always)]
pub fn refused<const N: usize>(work: &mut Work<N>) -> bool {
    match work.verdict.action {
        // The flow is forgotten, and the client is told.
        Action::ToClient => work.verdict.outcome = Outcome::IcmpTranslated,
        Action::Drop => {}
        _ => return false,
    }
    true
}

/// Decides over an error; the verdict stands in `work` afterwards.
#[inline(always)]
pub fn quoted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, error: IcmpError) {
    work.verdict.pass();
    if translate(tables, work, hook, Outcome::IcmpTranslated) != Related::Translated {
        return;
    }
    let from_backend =
        work.verdict.action == Action::ToClient && work.connection.entry().flow.flags & flow_flags::DIRECT == 0;
    if from_backend && error.is_refusal && error.from_destination && work.packet.key.protocol == UDP {
        suspect(tables, work);
    }
}

/// The backend itself says that nobody is at its port: new flows avoid it from now on.
#[inline(always)]
fn suspect<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>) {
    let now = Now::from_ns(tables.now_ns());
    let id = work.connection.entry().flow.backend;
    let Some(backend) = tables.backend(id) else { return };
    outlier::accuse(tables, id, backend.generation, now);
}
