//! Sets of maps of different layouts and sizes: the description that a set has of itself, and the fate of each map when another set follows. Records
//! are copied field by field, by name.
//!
//! A set is a folder of pinned maps. The caller makes the new set, in this order:
//!
//! 1. [`Description::read`] the old set, [`Description::of_object`] the new one; [`fates`], and [`check_room`]: nothing is changed yet.
//! 2. Share, make, and [`Description::write`]; [`copy`] what is to be copied, with [`Pass::First`].
//! 3. [`FlowMover::reserve`], and let the new programs take over; [`FlowMover::reserve`] again. From here on an entry of a flow that the new tables hold is theirs, and one that the old tables alone
//!    hold is the old programs'.
//! 4. [`copy`] again what is to be copied twice, with [`Pass::Again`]; [`FlowMover::pass`] until two passes in a row find nothing;
//!    [`FlowMover::release`].
//!
//! Minimum kernel: 5.8, as for the maps themselves.

mod btf;
mod convert;
mod copy;
mod description;
mod error;
mod fates;
mod flow_fields;
mod flow_table;
mod grace;
mod merge;
mod mover;
mod record;
mod reserve;
mod room;
mod services;
mod tables;
mod tags;

pub use copy::{Copied, Pass, copy};
pub use description::{Description, MapDescription};
pub use error::LayoutError;
pub use fates::{Fate, fates};
pub use mover::{FlowMover, Moved, handshake_state_at};
pub use record::{Element, Field, Record};
pub use room::check_room;
pub use services::services;
