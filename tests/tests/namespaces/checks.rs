//! Active checks: an endpoint that answers badly, not at all, or takes no connection gets no new flows until it is well again.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{NodeOptions, Pod};

const CHECK_PORT: u16 = 9000;

/// What a pod says of its health, on every address of it.
struct Health {
    /// Status that it answers with; 0: it accepts and says nothing.
    status: Arc<AtomicU16>,
    asked: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Health {
    fn listen(pod: &Pod, status: u16) -> Self {
        let listener = pod.netns().run(|| TcpListener::bind(("::", CHECK_PORT))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (status, asked, stop) = (Arc::new(AtomicU16::new(status)), Arc::default(), Arc::default());
        let worker = std::thread::spawn({
            let (status, asked, stop) = (Arc::clone(&status), Arc::clone(&asked), Arc::clone(&stop));
            move || answer(&listener, &status, &asked, &stop)
        });
        Self { status, asked, stop, worker: Some(worker) }
    }

    fn say(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

fn answer(listener: &TcpListener, status: &AtomicU16, asked: &AtomicU32, stop: &AtomicBool) {
    // Those that get no answer stay open until they give up.
    let mut silent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        asked.fetch_add(1, Ordering::Relaxed);
        let status = status.load(Ordering::Relaxed);
        if status == 0 {
            silent.push(stream);
            continue;
        }
        stream.set_nonblocking(false).ok();
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
        let mut request = [0; 1024];
        // Who asks by TCP alone sends nothing, and is gone.
        if stream.read(&mut request).is_ok_and(|length| length > 0) {
            write!(stream, "HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
        }
    }
}

/// Addresses of pods and of nodes alike.
const ON: &str = "--active-checks=pods,0.0.0.0/0,::/0";

fn checked(fixture: &Fixture, how: &str) -> Service {
    let web = fixture.web().annotated("check", how).annotated("check-port", "9000");
    web.annotated("check-interval", "1s").annotated("check-timeout", "1s").annotated("check-failures", "2")
}

/// The addresses of backends on port 8080 that are unhealthy.
fn unhealthy(agent: &Agent) -> Vec<String> {
    let shown = agent.json(&["get", "backends", "--state", "unhealthy", "--service", "web:80"]).unwrap();
    let items = shown["items"].as_array().unwrap().iter();
    items.map(|item| item["address"].as_str().unwrap().to_owned()).collect()
}

fn both(pod: &Pod) -> Vec<String> {
    pod.addresses().both().map(|address| address.to_string()).to_vec()
}

fn wait_for(agent: &Agent, what: &str, expected: &[String]) {
    eventually(what, SOON, || {
        std::thread::sleep(Duration::from_millis(50));
        (unhealthy(agent) == expected).then_some(())
    });
}

/// Who answers new connections.
fn answered_by(fixture: &Fixture, to: SocketAddr) -> Vec<String> {
    let ask = |_| Stream::connect(fixture.client.netns(), to).unwrap().ask("who").unwrap().server;
    let mut servers: Vec<String> = (0..30).map(ask).collect();
    servers.sort();
    servers.dedup();
    servers
}

#[test]
fn an_endpoint_that_answers_badly_or_not_at_all_gets_no_new_flows_until_it_is_well() {
    let fixture = Fixture::new("checkhttp", Pods::Routed, 2, NodeOptions::default());
    let healths: Vec<Health> = fixture.backends.iter().map(|pod| Health::listen(pod, 200)).collect();
    let service = checked(&fixture, "http").annotated("check-path", "/ready");
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[ON]);
    eventually("both are asked", SOON, || {
        std::thread::sleep(Duration::from_millis(50));
        healths.iter().all(|health| health.asked() >= 4).then_some(())
    });
    assert!(unhealthy(&agent).is_empty());

    let mut held = Vec::new();
    for to in service.frontends(Protocol::Tcp) {
        let enough = held.len() + 2;
        while held.len() < enough {
            let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
            if stream.ask("who").unwrap().server == "b1" {
                held.push(stream);
            }
        }
    }
    for status in [500, 0] {
        healths[1].say(status);
        wait_for(&agent, "b1 is unhealthy", &both(&fixture.backends[1]));
        for to in service.frontends(Protocol::Tcp) {
            assert_eq!(answered_by(&fixture, to), ["b0"], "status {status}");
        }
        for stream in &mut held {
            stream.ask("still").unwrap();
        }
        assert!(agent.metrics().unwrap().contains("ballast_checks_total{result=\"failed\"}"));

        // Another agent does not forget it, and asks for itself.
        agent.kill();
        assert_eq!(unhealthy(&agent), both(&fixture.backends[1]), "shown by the tables alone");
        agent.restart().unwrap();
        for to in service.frontends(Protocol::Tcp) {
            assert_eq!(answered_by(&fixture, to), ["b0"], "after a restart");
        }
        eventually("status names those that fail", SOON, || {
            let shown = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
            (shown.contains("Checks:") && shown.contains("test/web:80/TCP at")).then_some(())
        });

        healths[1].say(302);
        wait_for(&agent, "b1 is well again", &[]);
        for to in service.frontends(Protocol::Tcp) {
            eventually("b1 takes new flows", SOON, || (answered_by(&fixture, to).len() == 2).then_some(()));
        }
    }
    let lines = ["ballast_check_endpoints 8.0", "ballast_check_failing 0.0", "ballast_checks_total{result=\"well\"}"];
    eventually("metrics say so", SOON, || {
        let metrics = agent.metrics().unwrap();
        lines.iter().all(|line| metrics.contains(line)).then_some(())
    });
}

#[test]
fn a_port_that_takes_no_connections_is_found_and_all_failing_serve_rather_than_none() {
    let fixture = Fixture::new("checktcp", Pods::Routed, 2, NodeOptions::default());
    let mut healths: Vec<Option<Health>> = fixture.backends.iter().map(|pod| Some(Health::listen(pod, 200))).collect();
    let service = checked(&fixture, "tcp");
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[ON, "--check-limits", "per-second=50,in-flight=4"]);
    let to = service.frontends(Protocol::Tcp)[0];
    healths[0] = None;
    wait_for(&agent, "b0 is unhealthy", &both(&fixture.backends[0]));
    assert_eq!(answered_by(&fixture, to), ["b1"]);

    healths[1] = None;
    // Its flag says that it is kept out, which it is not where all of them fail.
    eventually("both serve again", SOON, || (answered_by(&fixture, to).len() == 2).then_some(()));

    healths[0] = Some(Health::listen(&fixture.backends[0], 200));
    wait_for(&agent, "b1 alone fails", &both(&fixture.backends[1]));
    assert_eq!(answered_by(&fixture, to), ["b0"]);

    // Without the annotation nobody is asked, and nobody is kept out.
    agent.apply(&Manifest::of([fixture.web()])).unwrap();
    wait_for(&agent, "nobody is checked", &[]);
    eventually("both serve", SOON, || (answered_by(&fixture, to).len() == 2).then_some(()));
    let health = healths[0].as_ref().unwrap();
    eventually("nobody is asked any more", SOON, || {
        let before = health.asked();
        std::thread::sleep(Duration::from_secs(3));
        (health.asked() == before).then_some(())
    });
}

#[test]
fn no_address_of_a_service_is_asked_even_if_a_slice_names_it() {
    let fixture = Fixture::new("checkself", Pods::Routed, 1, NodeOptions::default());
    let health = Health::listen(&fixture.backends[0], 200);
    let checked = Service::standard("loop", 11, fixture.endpoints()).annotated("check", "tcp");
    let mut through = fixture.web();
    through.endpoints[0].addresses = checked.cluster_ips;
    let through = through.annotated("check", "tcp").annotated("check-interval", "1s");
    let agent = fixture.agent(&Manifest::of([through, checked.clone()]), &[ON, "--log-level", "debug"]);
    eventually("the other one is checked", SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        agent.metrics().ok()?.contains("ballast_checks_total{result=\"well\"}").then_some(())
    });
    // Two ports in two families of the one; none of the other.
    assert!(agent.metrics().unwrap().contains("ballast_check_endpoints 4.0"), "{}", agent.metrics().unwrap());
    drop(health);
}
