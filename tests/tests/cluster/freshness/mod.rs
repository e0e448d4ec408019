//! An agent whose API freezes, goes away, or only seems to be there: what it says of itself, and that traffic never notices.
//!
//! The silence after which it asks is shortened; `incident_b` has the true times. Needs root.

mod api_errors;
mod events;
mod odd_object;
mod outage;
mod scenario;
