//! The manual's page "An incident, walked through": its commands are run as they are written, and print what the page shows.
//!
//! With `BALLAST_WRITE_WALKTHROUGH=1` the page gets what they print.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::{Endpoint, Manifest, SOON, Service};
use lb_tests::cluster::PacketDrop;
use lb_tests::fixture::serve;
use lb_tests::peers::{Server, Stream, eventually};
use lb_tests::topology::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fixture::{Fleet, OPERATOR};

/// A connection that meets the dead backend is answered by the other one at its second SYN.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections of each client at the same time: enough that both backends are selected.
const CONNECTIONS: usize = 12;

/// A command of the page, and the lines below it.
#[derive(Debug)]
struct Shown {
    command: String,
    output: String,
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/walkthrough.md")
}

/// The blocks of the page that begin with a prompt.
fn shown(page: &str) -> Vec<Shown> {
    let blocks = page.split("```text\n$ ").skip(1).filter_map(|rest| rest.split_once("```"));
    let shown = blocks.filter_map(|(block, _)| block.split_once('\n'));
    shown.map(|(command, output)| Shown { command: command.to_owned(), output: output.to_owned() }).collect()
}

/// Lines without what differs from run to run: numbers, digests and widths of columns.
fn lines(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let is_digest = word.len() == 12 && word.chars().all(|letter| letter.is_ascii_hexdigit());
        if is_digest {
            return "#".to_owned();
        }
        let mut out = String::new();
        for letter in word.chars() {
            let is_of_number = letter.is_ascii_digit() || (letter == '.' && out.ends_with('#'));
            if !is_of_number {
                out.push(letter);
            } else if !out.ends_with('#') {
                out.push('#');
            }
        }
        out
    };
    // How long ago it was ejected decides what the line says next.
    let line = |line: &str| line.split_once(" - ejected").map_or(line, |(begin, _)| begin).to_owned();
    text.lines().map(line).map(|line| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")).collect()
}

/// One service: one backend lives, the other one is ready for the API and gets no packet. Fields in the order in which they must end.
struct Incident {
    _servers: Vec<Vec<Server>>,
    clients: [Pod; 2],
    backends: [Pod; 3],
    fleet: Fleet,
}

impl Incident {
    fn new() -> Result<Self> {
        let fleet = Fleet::new("walkthrough")?;
        let clients = [fleet.nodes[0].pod("client0")?, fleet.nodes[0].pod("client1")?];
        let backends = [fleet.nodes[0].pod("b0")?, fleet.nodes[0].pod("b1")?, fleet.nodes[0].pod("b2")?];
        let servers = backends.iter().map(|pod| serve(pod, "server")).collect();
        let this = Self { _servers: servers, clients, backends, fleet };
        this.serve(2)?;
        eventually("both nodes are the same", SOON, || {
            let (code, text) = this.fleet.ballast(OPERATOR, &["status"]).ok()?;
            (code == Some(0) && text.contains("2 same")).then_some(())
        });
        let deaf = "add table inet deaf; add chain inet deaf in { type filter hook input priority 0; policy drop; }";
        let done = this.backends[1].netns().run(|| std::process::Command::new("nft").arg(deaf).status())?;
        ensure!(done.success(), "nft");
        Ok(this)
    }

    /// The service has the first `count` backends.
    fn serve(&self, count: usize) -> Result<()> {
        let node = self.fleet.nodes[0].node_name();
        let endpoints = self.backends[..count].iter().map(|pod| Endpoint::ready(pod.addresses()).on(&node)).collect();
        self.fleet.cluster.create(&Manifest::of([Service::web(endpoints)]))
    }

    /// Connections of both clients at the same time.
    fn connect(&self) {
        let web: SocketAddr = "10.96.0.10:80".parse().expect("an address written here");
        std::thread::scope(|scope| {
            for client in self.clients.iter().flat_map(|client| std::iter::repeat_n(client, CONNECTIONS)) {
                scope.spawn(move || drop(Stream::connect_from(client.netns(), 0, web, PATIENCE)));
            }
        });
    }

    /// What the command prints. One that prints events goes on until it has printed those that the page shows.
    fn run(&self, shown: &Shown) -> Result<String> {
        let mut child = self.fleet.shell(&shown.command, 0)?;
        if !shown.command.contains(" monitor") {
            return text_of(child);
        }
        let reader = Lines::of(&mut child)?;
        eventually("the header", SOON, || (!reader.text().is_empty()).then_some(()));
        let wanted: BTreeSet<String> = lines(&shown.output).into_iter().collect();
        for _ in 0..10 {
            self.connect();
            let printed = reader.text();
            let there: BTreeSet<String> = lines(&printed).into_iter().collect();
            if wanted.is_subset(&there) && printed.contains("ejected") {
                break;
            }
        }
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
        child.wait()?;
        Ok(first_of_each(&reader.text()))
    }
}

/// The first line of each kind.
fn first_of_each(text: &str) -> String {
    let mut seen = BTreeSet::new();
    let first = text.lines().filter(|line| seen.insert(lines(line)));
    first.flat_map(|line| [line, "\n"]).collect()
}

fn text_of(child: Child) -> Result<String> {
    let output = child.wait_with_output()?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// What a process has printed so far.
struct Lines(std::sync::Arc<std::sync::Mutex<String>>);

impl Lines {
    fn of(child: &mut Child) -> Result<Self> {
        let text = std::sync::Arc::default();
        let mut output = std::io::BufReader::new(child.stdout.take().context("a pipe")?);
        let shared: std::sync::Arc<std::sync::Mutex<String>> = std::sync::Arc::clone(&text);
        std::thread::spawn(move || {
            let mut line = String::new();
            while std::io::BufRead::read_line(&mut output, &mut line).is_ok_and(|length| length > 0) {
                shared.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Ok(Self(text))
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn the_commands_of_the_page_print_what_it_shows() -> Result<()> {
    let text = std::fs::read_to_string(page())?;
    let all = shown(&text);
    ensure!(all.len() >= 7, "{all:?}");
    let incident = Incident::new()?;
    // The watches of the second node are dead, and a third backend comes.
    let _silence = PacketDrop::of_open_connections(incident.fleet.nodes[1].netns(), incident.fleet.cluster.address())?;
    incident.serve(3)?;
    eventually("the first node has it", SOON, || {
        let states = incident.fleet.agents[0].states().ok()?;
        // A TCP and a UDP port, and two families.
        (states.iter().filter(|(service, ..)| service == "web").count() == 3 * 2 * 2).then_some(())
    });
    eventually("the second node is behind", SOON, || {
        let (code, text) = incident.fleet.ballast(OPERATOR, &["status"]).ok()?;
        (code == Some(1) && text.contains("node2: behind: ")).then_some(())
    });
    let (mut new, mut wrong) = (text.clone(), Vec::new());
    for shown in &all {
        let printed = incident.run(shown)?;
        if lines(&printed) != lines(&shown.output) {
            wrong.push(format!("$ {}\n{printed}instead of\n{}", shown.command, shown.output));
        }
        let block = |output: &str| format!("$ {}\n{output}```", shown.command);
        new = new.replace(&block(&shown.output), &block(&printed));
    }
    if std::env::var("BALLAST_WRITE_WALKTHROUGH").is_ok_and(|value| value == "1") {
        std::fs::write(page(), new)?;
        return Ok(());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
