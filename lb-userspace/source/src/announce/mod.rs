//! Kubernetes Events about objects that are refused or degraded: which ones, how often, and the posting.
//!
//! It never holds anything up: what cannot be posted now is posted later or, beyond a bound, not at all. The log, metrics and
//! `ballast status` show it as well.

mod object_event;
mod post;
mod schedule;

pub use object_event::ObjectEvent;
pub use post::run;
pub use schedule::OBJECT_EVENTS_MAX;
