//! Reads the event ring: each record is decoded, counted and, at log level debug, written.

use aya::maps::{MapData, RingBuf};
use bytes::Bytes;
use lb_common::outcome::Outcome;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::model::Family;
use crate::observe::events::Event;
use crate::observe::metrics::Metrics;
use crate::plan::BackendId;

/// How many backends that became suspect, or are no longer, may wait to be looked at. More are found by the next review.
pub const LEARNT: usize = 256;

/// So many records are read before others have a turn: a flood of events stops nothing else.
const TURN: usize = 256;

/// Follows the ring until it fails, which the log tells. The ring has one reader. `learnt` is told of each backend that became
/// suspect, or is no longer.
pub async fn follow(ring: RingBuf<MapData>, metrics: Metrics, learnt: mpsc::Sender<BackendId>) {
    if let Err(error) = read(ring, metrics, learnt).await {
        tracing::warn!("the event ring ended: {error}");
    }
}

async fn read(ring: RingBuf<MapData>, metrics: Metrics, learnt: mpsc::Sender<BackendId>) -> std::io::Result<()> {
    // SAFETY: the ring owns its descriptor, and is neither taken out nor replaced while it is registered.
    let mut ring =
        unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }.map_err(std::io::Error::from)?;
    loop {
        let mut ready = ring.readable_mut().await?;
        let mut read = 0;
        // The record is given back to the ring as soon as it is copied.
        while let Some(record) = ready.get_inner_mut().next().map(|record| Bytes::copy_from_slice(&record)) {
            match Event::decode(record) {
                Ok(event) => {
                    metrics.event(event.outcome);
                    if matches!(event.outcome, Outcome::Suspected | Outcome::Cleared) {
                        let family = if event.src.0.is_ipv4() { Family::V4 } else { Family::V6 };
                        // A full channel, or an agent that ends, loses nothing that the tables do not hold.
                        let _ = learnt.try_send(BackendId { family, id: event.backend });
                    }
                    tracing::debug!(
                        service = event.service,
                        backend = event.backend,
                        ifindex = event.ifindex,
                        "{event}"
                    );
                }
                Err(error) => tracing::warn!("{error}"),
            }
            read += 1;
            if read == TURN {
                break;
            }
        }
        if read < TURN {
            ready.clear_ready();
        } else {
            tokio::task::yield_now().await;
        }
    }
}
