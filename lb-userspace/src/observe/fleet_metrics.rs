//! What the listener of the fleet counts: its answers, reviews that failed, and whether it has its certificate.

use std::net::SocketAddr;

use axum::http::StatusCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::catalogue::Catalogue;

type Label = [(&'static str, String); 1];

/// Counters of the listener. Clones share them. There is no series with a label while `--fleet-bind` is off.
#[derive(Clone, Debug, Default)]
pub struct FleetMetrics {
    requests: Family<Label, Counter>,
    review_failures: Counter,
    certificate: Family<Label, Gauge>,
}

impl FleetMetrics {
    pub(super) fn register(&self, all: &mut Catalogue) {
        let requests = "Requests to the listener of the fleet (`--fleet-bind`), by answer";
        all.register("ballast_fleet_requests", requests, self.requests.clone());
        let reviews = "Requests to the listener of the fleet that the API server did not review: nobody is let in";
        all.register("ballast_fleet_review_failures", reviews, self.review_failures.clone());
        let certificate =
            "1 if the listener of the fleet could read its certificate and key when it read them last, by its address";
        all.register("ballast_fleet_certificate_read", certificate, self.certificate.clone());
    }

    /// A request was answered.
    pub fn answered(&self, status: StatusCode) {
        self.requests.get_or_create(&[("answer", answer(status).to_owned())]).inc();
    }

    /// The API server did not say whose the token is, or what its user may do.
    pub fn review_failed(&self) {
        self.review_failures.inc();
    }

    /// The files of the certificate were read, or could not be.
    pub fn certificate_read(&self, listener: SocketAddr, is_usable: bool) {
        self.certificate.get_or_create(&[("address", listener.to_string())]).set(i64::from(is_usable));
    }
}

/// What became of a request, as the label says it.
fn answer(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "unauthenticated",
        StatusCode::FORBIDDEN => "forbidden",
        _ if status.is_success() => "accepted",
        _ if status.is_client_error() => "refused",
        _ => "failed",
    }
}
