//! Requests to the Kubernetes API, counted and timed under client-go's names and labels, so that dashboards of Kubernetes components show them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

/// Hosts that have series of their own, at most. Later ones share the series of [`OTHER`]: a kubeconfig may name new hosts without end.
pub const HOSTS_MAX: usize = 16;
/// A host beyond [`HOSTS_MAX`], or a method that the agent does not use.
pub const OTHER: &str = "other";
/// The code of a request without an answer, as client-go has it.
pub const NO_ANSWER: &str = "<error>";

/// Upper bounds of the duration's buckets in seconds: those of Kubernetes components since 1.24.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// By code, method and host.
pub type RequestCounters = Family<[(&'static str, String); 3], Counter>;
/// In seconds, by verb and host.
pub type RequestDurations = Family<[(&'static str, String); 2], Histogram, fn() -> Histogram>;

/// What is known of all requests since the start. Clones share their counters.
#[derive(Clone)]
pub struct ApiRequests {
    requests: RequestCounters,
    durations: RequestDurations,
    hosts: Arc<Mutex<BTreeSet<String>>>,
}

impl Default for ApiRequests {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            hosts: Arc::default(),
        }
    }
}

impl fmt::Debug for ApiRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiRequests")
    }
}

/// A request in flight, from its first byte until its answer is read. Dropping the value records the end of the request.
#[derive(Debug)]
pub struct ApiRequest {
    all: ApiRequests,
    method: &'static str,
    host: String,
    /// `None`: a watch. Its duration says nothing.
    since: Option<Instant>,
    is_answered: bool,
}

impl ApiRequests {
    /// A request begins. `host` is the URL's, with its port. A watch is counted and not timed, as by client-go.
    pub fn begin(&self, method: &Method, host: &str, is_watch: bool) -> ApiRequest {
        let (method, host) = (method_label(method), self.host_label(host));
        ApiRequest { all: self.clone(), method, host, since: (!is_watch).then(Instant::now), is_answered: false }
    }

    /// The counters that all clones share, for a registry of metrics.
    pub fn counters(&self) -> RequestCounters {
        self.requests.clone()
    }

    /// The durations that all clones share. Watches are left out.
    pub fn durations(&self) -> RequestDurations {
        self.durations.clone()
    }

    fn host_label(&self, host: &str) -> String {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if !hosts.contains(host) {
            if hosts.len() == HOSTS_MAX {
                return OTHER.to_owned();
            }
            hosts.insert(host.to_owned());
        }
        host.to_owned()
    }
}

impl ApiRequest {
    /// The head of an answer is there. A request that ends before has the code [`NO_ANSWER`].
    pub fn answered(&mut self, code: StatusCode) {
        self.is_answered = true;
        self.count(code_label(code));
    }

    fn count(&self, code: String) {
        let labels = [("code", code), ("method", self.method.to_owned()), ("host", self.host.clone())];
        self.all.requests.get_or_create(&labels).inc();
    }
}

impl Drop for ApiRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            self.count(NO_ANSWER.to_owned());
        }
        if let Some(since) = self.since {
            let labels = [("verb", self.method.to_owned()), ("host", self.host.clone())];
            self.all.durations.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
        }
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => OTHER,
    }
}

/// The number of a registered code. Any other is `4xx` for 4 as its first digit: a server may send all of them.
fn code_label(code: StatusCode) -> String {
    let number = code.as_u16();
    if code.canonical_reason().is_some() { number.to_string() } else { format!("{}xx", number / 100) }
}

/// The series as a page of metrics shows them, under their names in the catalogue.
#[cfg(test)]
pub(crate) fn encode(requests: &ApiRequests) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("rest_client_requests", "", requests.counters());
    registry.register("rest_client_request_duration_seconds", "", requests.durations());
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a string takes all text");
    page
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn page(requests: &ApiRequests) -> Vec<String> {
        encode(requests).lines().filter(|line| line.starts_with("rest_client_")).map(str::to_owned).collect()
    }

    fn has(page: &[String], line: &str) -> bool {
        page.iter().any(|found| found == line)
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_timed_until_its_answer_is_read() {
        let requests = ApiRequests::default();
        let mut request = requests.begin(&Method::GET, "10.0.0.1:6443", false);
        tokio::time::advance(Duration::from_millis(50)).await;
        request.answered(StatusCode::OK);
        let counted = page(&requests);
        let line = "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"10.0.0.1:6443\"} 1";
        assert!(has(&counted, line), "{counted:?}");
        assert!(!counted.iter().any(|line| line.contains("duration")), "{counted:?}");
        tokio::time::advance(Duration::from_millis(250)).await;
        drop(request);
        let timed = page(&requests);
        for line in [
            "rest_client_request_duration_seconds_bucket{le=\"0.25\",verb=\"GET\",host=\"10.0.0.1:6443\"} 0",
            "rest_client_request_duration_seconds_bucket{le=\"0.5\",verb=\"GET\",host=\"10.0.0.1:6443\"} 1",
            "rest_client_request_duration_seconds_bucket{le=\"60.0\",verb=\"GET\",host=\"10.0.0.1:6443\"} 1",
        ] {
            assert!(has(&timed, line), "{line} is not in {timed:?}");
        }
    }

    #[tokio::test]
    async fn a_request_without_an_answer_has_client_gos_code() {
        let requests = ApiRequests::default();
        drop(requests.begin(&Method::POST, "a:1", false));
        let page = page(&requests);
        assert!(has(&page, "rest_client_requests_total{code=\"<error>\",method=\"POST\",host=\"a:1\"} 1"), "{page:?}");
        assert!(has(&page, "rest_client_request_duration_seconds_count{verb=\"POST\",host=\"a:1\"} 1"), "{page:?}");
    }

    #[tokio::test]
    async fn a_watch_is_counted_and_not_timed() {
        let requests = ApiRequests::default();
        requests.begin(&Method::GET, "a:1", true).answered(StatusCode::OK);
        let page = page(&requests);
        assert!(has(&page, "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"a:1\"} 1"), "{page:?}");
        assert!(!page.iter().any(|line| line.contains("duration")), "{page:?}");
    }

    /// However many names a server, a kubeconfig or a caller invents.
    #[tokio::test]
    async fn the_series_are_bounded() {
        let requests = ApiRequests::default();
        for code in 100..1000 {
            let code = StatusCode::from_u16(code).expect("a code");
            requests.begin(&Method::GET, "a:1", true).answered(code);
        }
        let codes = page(&requests).len();
        assert!((40..100).contains(&codes), "{codes} codes");
        for host in 0..100 {
            let method = Method::from_bytes(format!("M{host}").as_bytes()).expect("a method");
            drop(requests.begin(&method, &format!("h{host}:1"), true));
        }
        let page = page(&requests);
        assert_eq!(page.len() - codes, HOSTS_MAX, "the hosts beside the first one, and `other`");
        let others = 100 - (HOSTS_MAX - 1);
        let line = format!("rest_client_requests_total{{code=\"<error>\",method=\"other\",host=\"other\"}} {others}");
        assert!(has(&page, &line), "{line} is not in {page:?}");
    }
}
