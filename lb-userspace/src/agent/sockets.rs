//! Starts what ends sockets of evicted backends, and reports what it did.

use std::path::Path;

use super::clock;
use crate::config::Settings;
use crate::observe::report::SocketsReport;
use lb_datapath::SocketLb;
use lb_datapath::sockets::{Destroyed, Destroyer, Reach};

/// `None`: no sockets are translated, or there is no thread for it, which is logged.
pub(super) fn start(settings: &Settings, maps_dir: &Path) -> Option<Destroyer> {
    let reach = match settings.socket_lb {
        SocketLb::Off => return None,
        SocketLb::Host => Reach::Own,
        SocketLb::All => Reach::Everywhere,
    };
    let started = Destroyer::start(maps_dir, reach, clock::monotonic);
    started.inspect_err(|error| tracing::warn!("host sockets may keep a backend that is gone: no thread: {error}")).ok()
}

/// The report's part.
pub(super) fn report(destroyed: Destroyed) -> SocketsReport {
    let Destroyed { tcp, udp, failures, problem } = destroyed;
    SocketsReport {
        destroyed: [("tcp", tcp), ("udp", udp)].map(|(name, count)| (name.to_owned(), count)).into(),
        failures,
        problem,
    }
}
