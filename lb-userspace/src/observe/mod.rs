//! What can be seen: the tables as views and text, events, metrics, health, and the agent's own report.

pub mod catalogue;
pub mod connect_time;
pub mod contents;
pub mod event_stream;
pub mod event_view;
pub mod events;
pub mod fleet_metrics;
pub mod health;
pub mod health_check;
pub mod http;
pub mod inventory;
pub mod maintenance;
pub mod metrics;
pub mod preview;
pub mod process;
pub mod rates;
pub mod report;
pub mod report_socket;
pub mod series;
pub mod server;
pub mod status;
pub mod table;
pub mod text;
pub mod top;

#[cfg(test)]
mod outcome_tests;
