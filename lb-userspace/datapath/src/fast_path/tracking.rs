//! Before rules close the fast path, conntrack gets to know its connections.

use std::{
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use lb_tables::pause::pause;
use lb_takeover::tracked::{Since, Tracked, track};
use tokio::time::{sleep, timeout};

/// So long packets may pass the rules while connections are written; the rest is written after the fast path has closed.
const MOST: Duration = Duration::from_secs(2);
/// Pause between two looks at the writer.
const TICK: Duration = Duration::from_millis(2);

/// A thread that writes to conntrack, in the network namespace of its maker.
#[derive(Debug)]
pub(super) struct Tracking {
    tables: PathBuf,
    began: Since,
    writer: Option<JoinHandle<()>>,
}

impl Tracking {
    /// Begins to write all connections of the fast path by the tables in this folder.
    pub fn begin(tables: &Path) -> Self {
        Self { tables: tables.to_owned(), began: Since::now(), writer: write(tables, Since::EVER) }
    }

    fn is_over(&self) -> bool {
        self.writer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until conntrack knows all of them, for [`MOST`] at most.
    pub fn wait(&self) {
        let mut left = MOST;
        while !self.is_over() && !left.is_zero() {
            pause(TICK);
            left = left.saturating_sub(TICK);
        }
    }

    /// As [`Self::wait`].
    pub async fn waited(&self) {
        let over = async {
            while !self.is_over() {
                sleep(TICK).await;
            }
        };
        let _ = timeout(MOST, over).await;
    }

    /// The fast path is closed: writes those that began on it meanwhile, and waits for nothing.
    pub fn go_on(self) {
        write(&self.tables, self.began);
    }
}

fn write(tables: &Path, since: Since) -> Option<JoinHandle<()>> {
    let tables = tables.to_owned();
    let work = move || match track(&tables, since) {
        Ok(tracked) if tracked.refused != 0 => {
            tracing::warn!(?tracked, "conntrack does not take all connections of the fast path, which rules may stop");
        }
        Ok(Tracked { connections, took, .. }) if connections != 0 => {
            tracing::info!(connections, ?took, "conntrack knows the connections of the fast path");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "conntrack knows no connections of the fast path, which rules may stop"),
    };
    let writer = thread::Builder::new().name("tracking".into()).spawn(work);
    writer.inspect_err(|error| tracing::warn!(%error, "no thread for the connections of the fast path")).ok()
}
