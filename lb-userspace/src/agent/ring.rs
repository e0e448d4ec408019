//! Reads the event ring: each record is decoded, counted, handed to readers and, at log level debug, written.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use aya::maps::{MapData, RingBuf};
use bytes::Bytes;
use lb_common::outcome::Outcome;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::shortages::is_shortage;
use crate::observe::event_stream::EventStream;
use crate::observe::events::Event;
use crate::observe::metrics::Metrics;
use lb_model::Family;
use lb_plan::plan::BackendId;

/// How much of what was learnt may wait to be reported. More ejections are found by the next review, and what is short of room stays so.
pub const LEARNT: usize = 256;

/// What the tables' owner learns from events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// This backend became ejected, or is no longer.
    Ejection(BackendId),
    /// A new connection of the service port with this id was refused for want of room.
    Shortage { outcome: Outcome, service: u32, client: IpAddr },
}

/// So many records are read before others have a turn: a flood of events stops nothing else.
const TURN: usize = 256;

/// Where events go.
pub struct Takers {
    pub metrics: Metrics,
    pub learnt: mpsc::Sender<Learnt>,
    pub stream: EventStream,
}

/// Follows the ring until it fails, which is logged. The ring has one reader.
pub async fn follow(ring: RingBuf<MapData>, takers: Takers) {
    if let Err(error) = read(ring, takers).await {
        tracing::warn!("the event ring ended: {error}");
    }
}

async fn read(ring: RingBuf<MapData>, takers: Takers) -> std::io::Result<()> {
    // SAFETY: the ring owns its descriptor, and is neither taken out nor replaced while it is registered.
    let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }.map_err(std::io::Error::from)?;
    // The record is given back to the ring as soon as it is copied.
    drain(ring, |ring| ring.next().map(|record| Bytes::copy_from_slice(&record)), takers).await
}

/// Takes what `next` finds in `ring`, at most [`TURN`] records before others have a turn.
async fn drain<R: AsRawFd>(
    mut ring: AsyncFd<R>,
    mut next: impl FnMut(&mut R) -> Option<Bytes>,
    takers: Takers,
) -> std::io::Result<()> {
    loop {
        let mut ready = ring.readable_mut().await?;
        let mut read = 0;
        while let Some(record) = next(ready.get_inner_mut()) {
            match Event::decode(record) {
                Ok(event) => takers.take(&event),
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

impl Takers {
    fn take(&self, event: &Event) {
        self.metrics.event(event.outcome);
        let learnt = if matches!(event.outcome, Outcome::Ejected | Outcome::Cleared) {
            let family = if event.src.0.is_ipv4() { Family::V4 } else { Family::V6 };
            Some(Learnt::Ejection(BackendId { family, id: event.backend }))
        } else {
            // Without a backend, no port was looked for.
            let is_one = is_shortage(event.outcome) && (event.backend != 0 || event.outcome != Outcome::DroppedNoPort);
            let Event { outcome, service, src, .. } = *event;
            is_one.then_some(Learnt::Shortage { outcome, service, client: src.0 })
        };
        if let Some(learnt) = learnt {
            // A full channel, or an agent that ends, loses nothing that is not found again.
            let _ = self.learnt.try_send(learnt);
        }
        self.stream.publish(event);
        tracing::debug!(service = event.service, backend = event.backend, ifindex = event.ifindex, "{event}");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::unix::net::UnixStream,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use super::*;
    use lb_source::api_requests::ApiRequests;

    /// On the one thread that the agent's tasks share, with a ring that is never empty.
    #[tokio::test]
    async fn a_flood_of_events_keeps_no_timer_and_no_other_task_waiting() {
        let (ring, mut programs) = UnixStream::pair().expect("a pair of sockets");
        ring.set_nonblocking(true).expect("a socket");
        programs.write_all(b"x").expect("room for a byte");
        // SAFETY: the socket owns its descriptor, and is neither taken out nor replaced while it is registered.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        let ring = ring.map_err(std::io::Error::from).expect("a descriptor");
        let count = Arc::new(AtomicUsize::new(0));
        let (of_reader, (learn, _learnt)) = (count.clone(), mpsc::channel(LEARNT));
        let metrics = Metrics::new(&ApiRequests::default(), Vec::new);
        let takers = Takers { metrics, learnt: learn, stream: EventStream::default() };
        let next = move |_: &mut UnixStream| {
            of_reader.fetch_add(1, Ordering::Relaxed);
            Some(Bytes::copy_from_slice(&[0; size_of::<lb_common::abi::Event>()]))
        };
        let reader = tokio::spawn(drain(ring, next, takers));
        let read = || count.load(Ordering::Relaxed);
        let mut bursts = 0;
        while bursts < 100 {
            let before = read();
            tokio::task::yield_now().await;
            bursts += usize::from(read() > before);
            assert!(read() - before <= TURN, "{} records in one burst", read() - before);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let before = read();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(read() > before && !reader.is_finished(), "the flood goes on");
        reader.abort();
    }
}
