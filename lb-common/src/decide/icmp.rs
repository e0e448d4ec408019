//! ICMP errors about a flow's packet: translated with what they quote, both ways.
//!
//! The error travels against the packet that it quotes, so it goes the way of the quoted tuple reversed, which is what `work.packet`
//! holds. What a verdict writes into a packet of that tuple is written into the quoted packet reversed.

use super::packet::Hook;
use super::related::translate;
use super::tables::Tables;
use super::verdict::Action;
use super::work::Work;
use crate::outcome::Outcome;
use crate::state::tcp_flag;

/// Makes the packet in `work` the RST that a refusal stands for which quotes a connection's first segment: for [`super::open`] and
/// [`super::retry`], which know the half-open flows. [`refused`] says what came of it.
#[inline(always)]
pub fn as_refusal<const N: usize>(work: &mut Work<N>, sequence: u32) {
    work.verdict.pass();
    work.packet.tcp_flags = tcp_flag::RST | tcp_flag::ACK;
    work.packet.is_error = true;
    work.packet.ack = sequence.wrapping_add(1);
}

/// What the steps said of a refusal: `true`, if it was a half-open flow's, and the verdict holds for the error.
#[inline(always)]
pub fn refused<const N: usize>(work: &mut Work<N>) -> bool {
    match work.verdict.action {
        // The flow is forgotten, and the client gets the error.
        Action::ToClient => work.verdict.outcome = Outcome::IcmpTranslated,
        Action::Drop => {}
        Action::Pass | Action::ToBackend | Action::Refuse => return false,
    }
    true
}

/// Decides over an error; the verdict stands in `work` afterwards.
#[inline(always)]
pub fn quoted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    work.verdict.pass();
    translate(tables, work, hook, Outcome::IcmpTranslated);
}
