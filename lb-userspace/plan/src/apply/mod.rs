//! The only writer of the tables: carries plans out over a store, records the programmed state, retries, and watches deadlines.

mod audit;
mod backlog;
mod connect_times;
mod dump;
mod elements;
mod endpoints;
mod kernel;
mod load;
mod maintained;
mod memory;
mod pending;
mod programmer;
mod records;
mod report;
mod run;
mod store;
mod subject;
mod writer;

pub use audit::{Audit, AuditReport, Finding, FindingKind, inspect, read_all};
pub use kernel::KernelStore;
pub use memory::MemoryStore;
pub use programmer::Programmer;
pub use report::{BackendCounts, Report};
pub use store::{Store, StoreError};

/// Why the tables cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(
        "the tables cannot be read, so nothing is changed: {0}; see that no other program holds them, and start again"
    )]
    Unreadable(#[from] StoreError),
}
