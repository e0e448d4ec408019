//! Health-check node ports: a listener for each, opened and closed as services change, on every address of the node.
//!
//! The checks of the agent before this one are served as soon as the agent has what it needs itself, and answered as it did until the source is
//! read. Ports take no more than a share of the descriptors: beyond it the oldest Services have theirs, and the others are refused by name.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::descriptors::Share;
use super::health_memory::{Checks, Memory};
use crate::observe::health_check::{self, WEIGHT_HEADER};
use crate::observe::server::{self, Admission, Patience};
use lb_model::ObjectName;
use lb_plan::plan::HealthCheck;

/// Connections that wait to be accepted on one port.
const BACKLOG: i32 = 64;

/// Whether the node is healthy.
type Asks = Box<dyn Fn() -> bool + Send + Sync>;

/// The servers.
pub(super) struct HealthChecks {
    node: Arc<OnceLock<Asks>>,
    memory: Memory,
    /// Why the answers could not be written down.
    forgetful: Option<String>,
    wanted: watch::Sender<Checks>,
    admission: Admission,
    share: Share,
    open: BTreeMap<u16, Vec<AbortOnDropHandle<()>>>,
    /// Why a port is not open.
    problems: BTreeMap<u16, String>,
}

impl HealthChecks {
    /// Serves what an agent before this one answered, by its notes in the run folder. `tables`: they are there, and serve on.
    ///
    /// Until [`Self::follow`] the node counts as healthy: what that agent programmed works without any.
    pub fn inherit(run_dir: &Path, tables: bool, share: Share) -> Self {
        let memory = Memory::open(run_dir);
        // That agent served no more than its own share: these are the oldest Services, unless the limit is lower now.
        let checks = if tables { oldest(memory.answers(), share.ports, |_| 0) } else { Checks::default() };
        let (wanted, _) = watch::channel(checks.clone());
        let mut servers = Self {
            node: Arc::default(),
            memory,
            forgetful: None,
            wanted,
            admission: Admission::new(share.connections),
            share,
            open: BTreeMap::new(),
            problems: BTreeMap::new(),
        };
        // A port that cannot be opened is reported once the source is read.
        servers.open(&checks);
        servers
    }

    /// From now on `node` is asked at each request.
    pub fn follow(&mut self, node: impl Fn() -> bool + Send + Sync + 'static) {
        // There is one node: the first one counts.
        let _ = self.node.set(Box::new(node));
    }

    /// These, and what was answered last for services that are held as the tables have them.
    pub fn with_held(&self, mut wanted: Checks, is_held: impl Fn(&ObjectName) -> bool) -> Checks {
        for (port, check) in self.memory.answers().iter().filter(|(_, check)| is_held(&check.service)) {
            wanted.entry(*port).or_insert_with(|| check.clone());
        }
        wanted
    }

    /// Opens and closes ports until they are these, or as many as there are descriptors for: those of the oldest Services. What cannot be opened is
    /// tried again by the next call. `age`: of a Service; less is older.
    pub fn set(&mut self, wanted: &Checks, age: impl Fn(&ObjectName) -> i64) {
        let served = oldest(wanted, self.share.ports, age);
        self.remember(&served);
        if *self.wanted.borrow() != served {
            self.wanted.send_replace(served.clone());
        }
        self.open.retain(|port, _| served.contains_key(port));
        self.problems.retain(|port, _| wanted.contains_key(port));
        let refused = wanted.iter().filter(|(port, _)| !served.contains_key(port));
        self.problems.extend(refused.map(|(port, check)| (*port, self.share.refusal(*port, &check.service))));
        self.open(&served);
    }

    fn open(&mut self, wanted: &Checks) {
        for (port, check) in wanted {
            if self.open.contains_key(port) {
                continue;
            }
            match listen(*port) {
                Ok(listeners) => {
                    let servers = listeners.into_iter().map(|listener| self.serve(*port, listener));
                    self.open.insert(*port, servers.collect());
                    self.problems.remove(port);
                }
                Err(error) => {
                    let problem = format!(
                        "healthCheckNodePort {port} of Service {} cannot be opened: {error}; free the port, or give the Service another one",
                        check.service
                    );
                    self.problems.insert(*port, problem);
                }
            }
        }
    }

    /// Writes down what is answered now; a failure is reported once.
    fn remember(&mut self, wanted: &Checks) {
        let problem = self.memory.keep(wanted).err().map(|error| error.to_string());
        if let Some(error) = problem.as_ref().filter(|_| self.forgetful != problem) {
            tracing::warn!(
                error,
                "answers of health-check node ports are not kept for a restart: the run folder refuses them"
            );
        }
        self.forgetful = problem;
    }

    /// Why ports are not open.
    pub fn problems(&self) -> &BTreeMap<u16, String> {
        &self.problems
    }

    fn serve(&self, port: u16, listener: TcpListener) -> AbortOnDropHandle<()> {
        let node = self.node.clone();
        let wanted = self.wanted.subscribe();
        let router = Router::new().fallback(move || {
            let is_healthy = node.get().is_none_or(|node| node());
            let answer = answer(wanted.borrow().get(&port), is_healthy);
            async move { answer }
        });
        let serve = server::serve(listener, router, self.admission.clone(), Patience::default());
        AbortOnDropHandle::new(tokio::spawn(serve))
    }
}

/// So many of the checks: those of the oldest Services, then of the first by name. So a restart, and another node, choose the same.
fn oldest(checks: &Checks, most: usize, age: impl Fn(&ObjectName) -> i64) -> Checks {
    if checks.len() <= most {
        return checks.clone();
    }
    let mut by_age: Vec<_> = checks.iter().map(|(port, check)| (age(&check.service), &check.service, *port)).collect();
    by_age.sort_unstable();
    by_age.into_iter().take(most).filter_map(|(_, _, port)| Some((port, checks.get(&port)?.clone()))).collect()
}

fn answer(check: Option<&HealthCheck>, is_healthy: bool) -> Response {
    // It is asked at the moment at which its port is closed.
    let Some(check) = check else { return axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let (code, body) = health_check::answer(check, is_healthy);
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS.as_str(), "nosniff".to_owned()),
        (WEIGHT_HEADER, body.local_endpoints.to_string()),
    ];
    (code, headers, serde_json::to_string(&body).unwrap_or_default()).into_response()
}

/// On every address of both families; a kernel without IPv6 has only one.
fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners = vec![bind(IpAddr::from(Ipv4Addr::UNSPECIFIED), port)?];
    match bind(IpAddr::from(Ipv6Addr::UNSPECIFIED), port) {
        Ok(listener) => listeners.push(listener),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {}
        Err(error) => return Err(error),
    }
    Ok(listeners)
}

fn bind(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(address, port)), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of the agent before this one may still be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(address, port).into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    fn checks(port: u16, local_ready: usize) -> Checks {
        [(port, HealthCheck { service: ObjectName::new("demo", "web"), local_ready })].into()
    }

    async fn ask(address: IpAddr, port: u16) -> io::Result<String> {
        let mut stream = TcpStream::connect((address, port)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text.to_lowercase())
    }

    async fn free_port() -> u16 {
        TcpListener::bind("0.0.0.0:0").await.and_then(|listener| listener.local_addr()).expect("a free port").port()
    }

    /// Many descriptors.
    fn share() -> Share {
        Share::of(1 << 20)
    }

    fn of_one_age(_: &ObjectName) -> i64 {
        0
    }

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Lets the tasks that were dropped end.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_next_agent_answers_as_this_one_did_until_it_knows_better() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let port = free_port().await;
        let mut first = HealthChecks::inherit(dir.path(), false, share());
        first.set(&checks(port, 2), of_one_age);
        drop(first);
        settle().await;
        {
            let _second = HealthChecks::inherit(dir.path(), true, share());
            let text = ask(LOCAL, port).await.expect("open before anybody said so");
            assert!(text.starts_with("http/1.1 200") && text.contains("x-load-balancing-endpoint-weight: 2"), "{text}");
        }
        settle().await;
        {
            let _without_tables = HealthChecks::inherit(dir.path(), false, share());
            ask(LOCAL, port).await.expect_err("nothing serves");
        }
    }

    #[tokio::test]
    async fn a_port_follows_its_service() {
        let healthy = Arc::new(AtomicBool::new(true));
        let of_node = healthy.clone();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut servers = HealthChecks::inherit(dir.path(), true, share());
        servers.follow(move || of_node.load(Ordering::Relaxed));
        let port = free_port().await;
        servers.set(&checks(port, 3), of_one_age);
        assert!(servers.problems().is_empty(), "{:?}", servers.problems());
        for address in [LOCAL, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let text = ask(address, port).await.expect("open");
            assert!(text.starts_with("http/1.1 200"), "{text}");
            assert!(text.contains("x-load-balancing-endpoint-weight: 3"), "{text}");
        }
        healthy.store(false, Ordering::Relaxed);
        let text = ask(LOCAL, port).await.expect("open");
        assert!(text.starts_with("http/1.1 503") && text.contains(r#""serviceproxyhealthy":false"#), "{text}");
        healthy.store(true, Ordering::Relaxed);
        servers.set(&checks(port, 0), of_one_age);
        let text = ask(LOCAL, port).await.expect("still open");
        assert!(text.starts_with("http/1.1 503") && text.contains(r#""localendpoints":0"#), "{text}");
        servers.set(&Checks::default(), of_one_age);
        settle().await;
        assert_eq!(ask(LOCAL, port).await.expect_err("closed").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn clients_that_never_finish_a_request_hold_up_no_probe_of_any_port() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut servers = HealthChecks::inherit(dir.path(), true, share());
        let (first, second) = (free_port().await, free_port().await);
        servers.set(&[checks(first, 1), checks(second, 2)].into_iter().flatten().collect(), of_one_age);
        let mut slow = Vec::new();
        for _ in 0..share().connections {
            let mut stream = TcpStream::connect((LOCAL, first)).await.expect("open");
            stream.write_all(b"GET / HT").await.expect("open");
            slow.push(stream);
        }
        for port in [first, second] {
            let answer = tokio::time::timeout(Duration::from_secs(20), ask(LOCAL, port)).await;
            let text = answer.expect("an answer in time").expect("an answer");
            assert!(text.starts_with("http/1.1 200"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_and_tried_again() {
        let taken = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut servers = HealthChecks::inherit(dir.path(), true, share());
        servers.set(&checks(port, 1), of_one_age);
        let problem = servers.problems().get(&port).expect("a problem").clone();
        assert!(problem.contains("demo/web") && problem.contains(&port.to_string()), "{problem}");
        drop(taken);
        servers.set(&checks(port, 1), of_one_age);
        assert!(servers.problems().is_empty());
        assert!(ask(LOCAL, port).await.expect("open").starts_with("http/1.1 200"));
    }

    /// Services `new`, `old-a`, `old-b`: the last two are of one age.
    #[tokio::test]
    async fn beyond_its_share_the_same_younger_services_are_refused_by_name_at_each_start() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut wanted = Checks::default();
        for name in ["new", "old-b", "old-a"] {
            wanted.insert(free_port().await, HealthCheck { service: ObjectName::new("demo", name), local_ready: 1 });
        }
        let age = |service: &ObjectName| if service == &ObjectName::new("demo", "new") { 20 } else { 10 };
        let port = |name: &str| {
            let mut named = wanted.iter().filter(|(_, check)| check.service == ObjectName::new("demo", name));
            *named.next().expect("it is wanted").0
        };
        let refused = |servers: &HealthChecks| servers.problems().keys().copied().collect::<Vec<u16>>();
        let two = Share { ports: 2, ..share() };
        for start in 0..2 {
            let mut servers = HealthChecks::inherit(dir.path(), true, two);
            if start > 0 {
                ask(LOCAL, port("old-a")).await.expect("open before the source is read");
            }
            assert!(ask(LOCAL, port("new")).await.is_err());
            servers.set(&wanted, age);
            assert_eq!(refused(&servers), [port("new")], "start {start}");
            let problem = &servers.problems()[&port("new")];
            assert!(problem.contains("Service demo/new") && problem.contains("RLIMIT_NOFILE"), "{problem}");
            assert!(ask(LOCAL, port("old-b")).await.is_ok() && ask(LOCAL, port("new")).await.is_err());
            drop(servers);
            settle().await;
        }
        // With less, one of those that were served is refused until there is room.
        let mut servers = HealthChecks::inherit(dir.path(), true, Share { ports: 1, ..share() });
        assert!(ask(LOCAL, port("old-a")).await.is_ok() && ask(LOCAL, port("old-b")).await.is_err());
        servers.set(&wanted, age);
        assert_eq!(servers.problems().len(), 2);
        let without_first: Checks = wanted.clone().into_iter().filter(|(at, _)| *at != port("old-a")).collect();
        servers.set(&without_first, age);
        assert_eq!(refused(&servers), [port("new")]);
        assert!(ask(LOCAL, port("old-b")).await.is_ok());
    }
}
