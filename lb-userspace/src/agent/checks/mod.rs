//! Active checks: this node asks the endpoints of services that want it whether they are well; those that fail are unhealthy.
//!
//! Every node checks by itself, from its own network namespace. Nothing is asked but endpoints that the API lists, and never an
//! address that a service has. How many checks are begun in a second and under way at the same time is bounded for the node.

mod ask;
mod endpoint;
mod run;
mod schedule;
mod wanted;

pub(super) use run::{Parts, run};
pub(super) use wanted::{Wanted, wanted};
