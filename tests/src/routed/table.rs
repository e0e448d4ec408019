//! Tests every cell of a table with real traffic, clients in parallel.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::{Cell, Client, Due, Network};
use crate::agent::Protocol;
use crate::peers::{Answer, Association, Datagrams, PATIENCE, Stream};

/// How long an answer is waited for that must not come. Short: that the packet was dropped is counted, too.
const SILENCE: Duration = Duration::from_millis(150);

/// How long a connection is tried for that must come about.
const CONNECT: Duration = Duration::from_secs(15);
/// How long an association is tried for that must come about. In an emulated machine the first repetition comes after 3 s.
const ASSOCIATE: Duration = Duration::from_mins(1);
/// How often a datagram is sent before its answer counts as lost. Nobody but the client repeats it, and a busy machine is late.
const DATAGRAMS: usize = 5;

/// A cell that was asked for, and what was wrong with it.
#[derive(Debug)]
pub struct Row {
    pub cell: Cell,
    pub wrong: Option<String>,
}

/// A source port that this process has not used before: what was sent from one before is no concern of the next cell.
pub(super) fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(11_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Asks for all of these cells.
pub fn run(network: &Network, cells: &[Cell]) -> Vec<Row> {
    side_by_side(cells, |cell| Row { cell, wrong: asked(network, cell).err() })
}

/// Asks for each of these cells, those of different clients at the same time.
pub(super) fn side_by_side<T: Send>(cells: &[Cell], ask: impl Fn(Cell) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let askers: Vec<_> = Client::ALL
            .into_iter()
            .map(|client| {
                let own = cells.iter().filter(move |cell| cell.client == client);
                scope.spawn(move || own.map(|cell| ask(*cell)).collect())
            })
            .collect();
        let rows =
            askers.into_iter().map(|asker| asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        rows.collect::<Vec<Vec<T>>>().into_iter().flatten().collect()
    })
}

/// What was said: the server's words, and the client's own address.
pub(super) type Said = std::io::Result<(Answer, SocketAddr)>;

fn asked(network: &Network, cell: Cell) -> Result<(), String> {
    let due = cell.due_in(network.mode);
    match (due, said(network, cell, (due == Due::Dropped).then_some(SILENCE))) {
        (Due::Dropped, Err(error)) if is_silence(&error) => Ok(()),
        (Due::Refused, Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        (Due::Own | Due::Masqueraded | Due::Service, Ok((answer, local))) => judge(network, cell, due, &answer, local),
        (_, said) => Err(format!("{due:?} is due, found {said:?}")),
    }
}

/// Asks for a cell; `silence`: how long an answer is waited for that must not come.
pub(super) fn said(network: &Network, cell: Cell, silence: Option<Duration>) -> Said {
    match cell.protocol {
        Protocol::Tcp => stream(network, cell, silence.unwrap_or(CONNECT)),
        Protocol::Udp => datagram(network, cell, silence),
        Protocol::Sctp => association(network, cell, silence),
    }
}

pub(super) fn is_silence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn stream(network: &Network, cell: Cell, limit: Duration) -> Said {
    let to = cell.frontend(network.nodes[0].addresses());
    let mut stream = Stream::connect_from(network.client(cell), 0, to, limit)?;
    let answer = stream.ask("hello")?;
    let (peer, local) = (stream.peer()?, stream.local()?);
    if peer != to {
        return Err(std::io::Error::other(format!("the client believes that it talks to {peer}")));
    }
    Ok((answer, local))
}

fn association(network: &Network, cell: Cell, silence: Option<Duration>) -> Said {
    let to = cell.frontend(network.nodes[0].addresses());
    let own = network.client_addresses(cell).of(cell.family);
    let (netns, limit) = (network.client(cell), silence.unwrap_or(ASSOCIATE));
    let mut association = Association::connect_within(netns, own, to, limit)?;
    let answer = association.ask("hello")?;
    let (peer, local) = (association.peer()?, association.local()?);
    if peer != to {
        return Err(std::io::Error::other(format!("the client believes that it talks to {peer}")));
    }
    Ok((answer, local))
}

fn datagram(network: &Network, cell: Cell, silence: Option<Duration>) -> Said {
    let to = cell.frontend(network.nodes[0].addresses());
    let netns = network.client(cell);
    // Only a connected socket learns of a refusal, and only it knows its own address.
    let socket = Datagrams::connected(netns, fresh_port(), to)?;
    let answer = repeated(&socket, to, silence)?;
    let (peer, local) = (socket.peer()?, socket.local()?);
    if peer != to {
        return Err(std::io::Error::other(format!("the client believes that it talks to {peer}")));
    }
    // Another one sees whom the answer came from.
    repeated(&Datagrams::unconnected(netns, fresh_port(), to)?, to, silence)?;
    Ok((answer, local))
}

fn repeated(socket: &Datagrams, to: SocketAddr, silence: Option<Duration>) -> std::io::Result<Answer> {
    let (times, limit) = silence.map_or((DATAGRAMS, PATIENCE), |silence| (1, silence));
    socket.set_patience(limit)?;
    let mut said = socket.ask_at(to, "1");
    for time in 2..=times {
        if said.as_ref().is_err_and(is_silence) {
            said = socket.ask_at(to, &time.to_string());
        }
    }
    said
}

/// The right server, which has seen the right client.
fn judge(network: &Network, cell: Cell, due: Due, answer: &Answer, local: SocketAddr) -> Result<(), String> {
    if answer.server != cell.backend.name() {
        return Err(format!("answered by {}", answer.server));
    }
    if !cell.client.is_process() && local.ip() != network.client_addresses(cell).of(cell.family) {
        return Err(format!("the client's own address is {local}"));
    }
    let seen = answer.peer.ip();
    let right = match due {
        Due::Own => match cell.masquerader(network.nodes[0].scene()) {
            Some(at) => network.is_of_node(at, seen),
            None => seen == local.ip(),
        },
        Due::Service => seen == cell.frontend(network.nodes[0].addresses()).ip(),
        _ if cell.backend == super::Backend::Pod => network.is_of_node(0, seen),
        _ => seen == network.masqueraded(cell.backend).of(cell.family),
    };
    if right { Ok(()) } else { Err(format!("the server sees {}, the client is {local}", answer.peer)) }
}
