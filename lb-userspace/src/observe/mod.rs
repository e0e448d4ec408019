//! What can be seen: the tables as views and text, events, metrics, health, and the agent's own status.

pub mod batch;
pub mod contents;
pub mod inventory;
pub mod table;
pub mod text;
