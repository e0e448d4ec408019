//! Faults between the API and the source `kube`: nothing is removed because the truth is unknown, and the truth is found again.
//!
//! Needs no root. The times are shortened by settings, where that changes nothing else; `incident_b` has the true ones.

mod compare;
mod connection;
mod credentials;
mod no_progress;
mod odd_objects;
mod order;
mod short_lists;
mod store;
mod watched_source;
