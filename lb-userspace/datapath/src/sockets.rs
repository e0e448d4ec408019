//! Sockets that the programs connected to a backend are ended when the backend is: no program sees their packets.
//!
//! A thread of its own reads `sockets4` and `sockets6`. In the kernel's own list it finds the sockets whose backend may no longer have them, and has
//! the kernel destroy them (`SOCK_DESTROY`). A socket is known by its cookie *and* its peer: a connection of somebody to the same address is never
//! touched.

mod destroyer;
mod diag;
mod entries;
mod holders;
mod kernel;
pub mod namespaces;

pub use destroyer::{Destroyed, Destroyer, Reach, Totals};
pub use diag::DiagError;
pub use holders::{Holder, holders};
