//! Reads the event ring: each record is decoded, counted and, at log level debug, written.

use aya::maps::{MapData, RingBuf};
use bytes::Bytes;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::observe::events::Event;
use crate::observe::metrics::Metrics;

/// Follows the ring until it fails, which the log tells. The ring has one reader.
pub async fn follow(ring: RingBuf<MapData>, metrics: Metrics) {
    if let Err(error) = read(ring, metrics).await {
        tracing::warn!("the event ring ended: {error}");
    }
}

async fn read(ring: RingBuf<MapData>, metrics: Metrics) -> std::io::Result<()> {
    // SAFETY: the ring owns its descriptor, and is neither taken out nor replaced while it is registered.
    let mut ring =
        unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }.map_err(std::io::Error::from)?;
    loop {
        let mut ready = ring.readable_mut().await?;
        // The record is given back to the ring as soon as it is copied.
        while let Some(record) = ready.get_inner_mut().next().map(|record| Bytes::copy_from_slice(&record)) {
            match Event::decode(record) {
                Ok(event) => {
                    metrics.event(event.outcome);
                    tracing::debug!(
                        service = event.service,
                        backend = event.backend,
                        ifindex = event.ifindex,
                        "{event}"
                    );
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        ready.clear_ready();
    }
}
