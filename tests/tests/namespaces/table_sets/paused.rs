//! The agent is held before each write by which it moves connections, while clients go on: they ask, end, reset, and use their ports again.

use std::io::Result;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use lb_tests::agent::{Agent, START};
use lb_tests::peers::{Datagrams, PATIENCE, Stream};
use lb_tests::random::Random;
use lb_tests::topology::NetNs;

use super::traffic::Frontends;
use super::{Scene, Side, settle, settled};

/// What moves connections, and what puts the new tables in force before that.
const WRITES: &[&str] = &[
    "update switch_word",
    "update flows",
    "update udp_flows",
    "update half_open",
    "update sockets",
    "delete from half_open",
    "take from",
];
/// At least so many writes are seen: fewer would mean that their names have changed.
const LEAST: usize = 40;
/// Connections of each kind to each frontend.
const EACH: usize = 3;
/// The first source port. Below the range of ports that the kernel gives by itself.
const FIRST_PORT: u16 = 21_000;

/// A connection and what its client does.
struct Client {
    port: u16,
    to: SocketAddr,
    act: Act,
    open: Option<(Stream, String)>,
    /// How often its SYN was sent again. One that uses its port again at once may meet the old connection at the backend: its SYN goes by another CPU
    /// than the end of that one, and overtakes it. No other SYN is sent again.
    syns: u32,
}

/// What a client does while the agent is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// Asks.
    Asks,
    /// Resets its connection, and begins another one from the same port.
    Resets,
    /// Ends its connection in order, and begins another one from the same port.
    Ends,
    /// Has ended its connection before, and begins another one from the same port at some moment.
    Begins,
}

/// Clients in one place.
pub struct Clients {
    netns: NetNs,
    tcp: Vec<Client>,
    udp: Vec<(Datagrams, String)>,
    random: Random,
}

impl Clients {
    /// Connects them. Those that begin later have ended a connection.
    pub fn new(netns: &NetNs, frontends: &Frontends) -> Self {
        // A client that ends first would keep its port for a minute.
        netns.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0")).unwrap();
        let acts = [Act::Asks, Act::Resets, Act::Ends, Act::Begins];
        let wanted = frontends.tcp.iter().flat_map(|to| acts.map(|act| (*to, act)));
        let wanted = wanted.flat_map(|one| [one; EACH]).zip(FIRST_PORT..);
        let tcp = wanted.map(|((to, act), port)| Client { port, to, act, open: None, syns: 0 }).collect();
        let udp = frontends.udp.iter().map(|to| {
            let socket = Datagrams::connected(netns, 0, *to).unwrap();
            let server = socket.ask("first").unwrap().server;
            (socket, server)
        });
        let udp = udp.collect();
        let mut clients = Self { netns: netns.clone(), tcp, udp, random: Random::new(lb_seed::of_run()) };
        for client in &mut clients.tcp {
            client.begin(&clients.netns).unwrap();
            if client.act == Act::Begins {
                client.reset().unwrap();
            }
        }
        clients
    }

    /// All of them go on; of those that begin later, one does.
    fn go_on(&mut self) -> std::result::Result<(), String> {
        let begins: Vec<u16> =
            self.tcp.iter().filter(|it| it.act == Act::Begins && it.open.is_none()).map(|it| it.port).collect();
        let chosen = begins.get(self.random.below(begins.len().max(1))).copied();
        for client in &mut self.tcp {
            let done = match client.act {
                Act::Begins if client.open.is_none() && Some(client.port) != chosen => Ok(()),
                Act::Begins if client.open.is_none() => client.begin(&self.netns),
                Act::Asks | Act::Begins => client.ask(),
                Act::Resets => client.reset().and_then(|()| client.begin(&self.netns)),
                Act::Ends => client.end().and_then(|()| client.begin(&self.netns)),
            };
            done.map_err(|error| {
                format!("the client of port {} that {:?}, to {}: {error}", client.port, client.act, client.to)
            })?;
        }
        for (socket, server) in &self.udp {
            match socket.ask("on") {
                Ok(answer) if answer.server == *server => {}
                other => return Err(format!("datagrams from {:?}: {other:?}", socket.local())),
            }
        }
        Ok(())
    }
}

impl Client {
    fn begin(&mut self, netns: &NetNs) -> Result<()> {
        let mut stream = Stream::connect_from(netns, self.port, self.to, PATIENCE)?;
        self.syns = if matches!(self.act, Act::Resets | Act::Ends) { stream.sent_again()? } else { 0 };
        let server = stream.ask("begin")?.server;
        self.open = Some((stream, server));
        self.ask()
    }

    fn ask(&mut self) -> Result<()> {
        let Some((stream, server)) = &mut self.open else { return Ok(()) };
        let answer = stream.ask("on")?.server;
        let lost = stream.lost(self.syns)?;
        if &answer == server && lost == 0 {
            return Ok(());
        }
        Err(std::io::Error::other(format!("{answer} answers, {server} did; {lost} segments were lost")))
    }

    fn reset(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |(stream, _)| stream.reset())
    }

    fn end(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |(stream, _)| stream.end())
    }
}

/// Starts the agent, which moves connections to its tables, and has the clients go on whenever it is held.
pub fn restart(agent: &mut Agent, root: &Path, clients: &mut Clients) {
    let stepped = agent.launch_stepped(None).unwrap();
    let held = stepped.hold_at(WRITES);
    let (begin, mut writes) = (Instant::now(), 0);
    while settled(root).is_none() || !agent.is_ready() {
        assert!(begin.elapsed() < START, "not within {START:?}: one set of tables");
        let went_on = held.at_next(Duration::from_millis(100), |step| {
            clients.go_on().unwrap_or_else(|error| panic!("held before `{step}`, the {writes}th write: {error}"));
        });
        match went_on {
            Some(()) => writes += 1,
            // Datagrams of clients that are silent for half a minute may go to another backend.
            None => clients.go_on().unwrap_or_else(|error| panic!("after {writes} writes: {error}")),
        }
    }
    drop(held);
    clients.go_on().unwrap_or_else(|error| panic!("after the switch: {error}"));
    println!("{writes} writes");
    assert!(writes >= LEAST, "{writes} writes were seen");
    stepped.end().unwrap();
}

/// From one of two sides to the other.
pub(super) fn between(subject: &str, sides: &[Side; 2]) {
    let scene = Scene::new(subject);
    let mut first = scene.agent(&sides[0]);
    first.restart().unwrap();
    settle(&scene.root(), "the first start");
    let mut clients = Clients::new(scene.fixture.client.netns(), &Frontends::of(&scene.fixture.web()));
    first.kill();
    std::mem::forget(first); // The next one cleans up.
    let mut agent = scene.agent(&sides[1]);
    restart(&mut agent, &scene.root(), &mut clients);
}
