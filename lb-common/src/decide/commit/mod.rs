//! The writes to the flow tables: no other module writes them.
//!
//! A connection has two entries, one for each direction. Other CPUs may write the same entries at any moment. An entry that was read is
//! compared before it is removed; what could not be written, a later packet writes again.

pub(super) mod adopted;
pub(super) mod claim;
pub(super) mod established;
pub(super) mod handshake;
pub(super) mod second;
pub(super) mod tuple;
