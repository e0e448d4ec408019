//! `ballast explain`: what would become of a packet on this node, and why. It reads the pinned maps, and writes nothing.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use lb_common::abi::{FlowKey, TCP, V4, V6};
use lb_common::state::SourcePorts;
use serde::Serialize;

use super::agent_dirs::AgentDirs;
use super::output::{Format, complain, print, render, sentence};
use super::{colour, pods};
use crate::agent::clock;
use crate::explain::pod::check;
use crate::explain::{self, Client, Destination, Explanation, Live, PacketAtHook, Reported, Seat, Seen, Target};
use crate::observe::report_socket;
use lb_datapath::{Attached, Point, maps_dir, name_of, programs_dir};
use lb_model::Monotonic;

/// The packet would be refused or dropped.
const REFUSED: u8 = 1;
/// It cannot be explained.
const FAILED: u8 = 2;
/// Stands for any source port.
const ANY_PORT: u16 = 40_000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Source of the packet: an address, or a pod, whose address the Kubernetes API knows; without a port, any
    #[arg(value_name = "ADDRESS[:PORT]|pod/NAMESPACE/NAME[:PORT]", value_parser = check::<Client>)]
    source: String,

    /// Destination: an address, a pod, or a service by its name in the tables. TCP, unless it says otherwise
    #[arg(
        value_name = "ADDRESS:PORT[/PROTOCOL]|svc/NAMESPACE/NAME[:PORT][/PROTOCOL]|pod/NAMESPACE/NAME:PORT[/PROTOCOL]",
        value_parser = check::<Destination>
    )]
    destination: String,

    /// The program that meets the packet first [default: by the route to the source]
    #[arg(long, value_enum)]
    hook: Option<Seen>,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    dirs: AgentDirs,
}

/// The tables that were read, and how fresh they are.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, schemars(rename = "Tables"))]
struct TablesRead {
    layout_version: u32,
    revision: u64,
    /// Seconds since they were last written; null: never.
    programmed_seconds: Option<f64>,
    /// Null: the agent answers.
    agent_error: Option<String>,
    /// Why the agent's source is stale; null: it is fresh, or the agent does not answer.
    stale: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    tables: TablesRead,
    /// Name of the hook's interface; null: not known, or none.
    interface: Option<String>,
    /// `native` or `generic`: XDP meets packets of the interface before tc, and decides alike. Null: it does not.
    xdp: Option<String>,
    #[serde(flatten)]
    explanation: Explanation,
}

/// 0: the packet is served, or passes; 1: it is refused or dropped; 2: it cannot be explained.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let shown = explained(arguments).and_then(|explained| {
        print(&render(arguments.output, &explained, |_| colour::labelled(text(&explained)))?)?;
        Ok(if explained.explanation.result.served { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    });
    shown.unwrap_or_else(|error| {
        complain(sentence(&error));
        ExitCode::from(FAILED)
    })
}

/// Source and destination, with an address for each pod.
fn ends(arguments: &Arguments) -> anyhow::Result<(Client, Destination)> {
    let given = [arguments.source.clone(), arguments.destination.clone()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(pods::with_addresses(&given, async || Ok(kube::Client::try_default().await?)))?;
    let parsed = (found[0].parse(), found[1].parse());
    Ok((parsed.0.map_err(anyhow::Error::msg)?, parsed.1.map_err(anyhow::Error::msg)?))
}

fn explained(arguments: &Arguments) -> anyhow::Result<Explained> {
    let (client, destination) = &ends(arguments)?;
    let (dir, programs) = (maps_dir(&arguments.dirs.bpffs), programs_dir(&arguments.dirs.bpffs));
    let now = clock::monotonic();
    let attached = lb_datapath::read_attached(&arguments.dirs.bpffs).ok();
    let sockets = attached.as_ref().is_some_and(|attached| !attached.sockets.is_empty());
    let (agent_error, stale, reported) = match arguments.dirs.ask(report_socket::ask) {
        Ok(report) => (None, report.source.stale.clone(), Reported::from(report)),
        Err(error) => (Some(error.to_string()), None, Reported::default()),
    };
    let asked = Query { hook: arguments.hook, client, destination, sockets, reported };
    let live = Live::open(&dir, &programs)?;
    let explanation = match client.address.to_canonical() {
        IpAddr::V4(source) => {
            asked.explain(&live, live.settings::<V4>(nanos(now), ports()), source.octets(), octets4)?
        }
        IpAddr::V6(source) => {
            asked.explain(&live, live.settings::<V6>(nanos(now), ports()), source.octets(), octets6)?
        }
    };
    let config = live.config();
    let written = config.filter(|config| config.programmed_ds != 0);
    let tables = TablesRead {
        layout_version: config.map_or(0, |config| config.abi_version),
        revision: config.map_or(0, |config| u64::from(config.revision_high) << 32 | u64::from(config.revision_low)),
        programmed_seconds: written.map(|config| now.since(Monotonic::from_tenths(config.programmed_ds)).as_secs_f64()),
        agent_error,
        stale,
    };
    let interface = name_of(explanation.hook.ifindex);
    Ok(Explained { tables, interface, xdp: xdp(attached.as_ref(), &explanation.hook), explanation })
}

/// The programs' own range is not in the tables: that of a start without `--snat-ports`.
fn ports() -> SourcePorts {
    lb_datapath::of_default_start()
}

fn nanos(now: Monotonic) -> u64 {
    u64::try_from(now.since(Monotonic::default()).as_nanos()).unwrap_or(u64::MAX)
}

/// How XDP is attached to the hook's interface.
fn xdp(attached: Option<&Attached>, seat: &Seat) -> Option<String> {
    let link = attached?.links.iter().find(|link| link.ifindex == seat.ifindex && seat.program == Seen::NodeIn)?;
    link.programs.iter().find(|program| program.point == Point::Xdp).map(|program| program.how.to_string())
}

fn octets4(address: IpAddr) -> Option<[u8; 4]> {
    if let IpAddr::V4(address) = address { Some(address.octets()) } else { None }
}

fn octets6(address: IpAddr) -> Option<[u8; 16]> {
    if let IpAddr::V6(address) = address { Some(address.octets()) } else { None }
}

/// What is asked of the tables of either family.
struct Query<'a> {
    hook: Option<Seen>,
    client: &'a Client,
    destination: &'a Destination,
    /// Whether sockets of the host are translated.
    sockets: bool,
    reported: Reported,
}

impl Query<'_> {
    /// Explains the packet within the address family of `src`. `octets`: of an address in that family.
    fn explain<const N: usize>(
        &self,
        stored: &Live,
        settings: explain::DecisionContext,
        src: [u8; N],
        octets: fn(IpAddr) -> Option<[u8; N]>,
    ) -> anyhow::Result<Explanation> {
        let protocol = self.destination.protocol;
        let (dst, dst_port, protocol) = match &self.destination.target {
            Target::Address(address) => {
                let dst = octets(address.ip().to_canonical());
                let dst =
                    dst.ok_or_else(|| anyhow::anyhow!("source and destination are of different address families"))?;
                (dst, address.port(), protocol.unwrap_or(TCP))
            }
            Target::Service { namespace, name, port } => {
                explain::resolve(stored, (namespace, name, port.as_deref()), protocol)?
            }
        };
        let Client { address, port } = *self.client;
        let key = FlowKey { src, dst, src_port: port.unwrap_or(ANY_PORT), dst_port, protocol, pad: [0; 3] };
        let found = explain::seat(stored, &src, address, self.sockets);
        let seat = match self.hook {
            Some(program) => Seat { program, reason: "as asked for".to_owned(), ..found },
            None => found,
        };
        let packet = explain::packet(stored, key);
        let question = PacketAtHook { packet, port_is_assumed: port.is_none(), seat, reported: self.reported.clone() };
        Ok(explain::explain(stored, settings, question))
    }
}

fn text(explained: &Explained) -> String {
    let tables = &explained.tables;
    let written =
        tables.programmed_seconds.map_or_else(|| "never written".to_owned(), |age| format!("written {age:.1} s ago"));
    let agent = match (&tables.agent_error, &tables.stale) {
        (Some(_), _) => "the agent does not answer".to_owned(),
        (None, Some(stale)) => format!("the agent is stale: {stale}"),
        (None, None) => "the agent answers, its source is fresh".to_owned(),
    };
    let mut rows = explain::text::rows(&explained.explanation, explained.interface.as_deref());
    if let Some(how) = &explained.xdp {
        rows.insert(2, ("XDP", format!("xdp_node ({how}) meets it before tc, and decides alike")));
    }
    let tables = format!("layout {}, revision {}, {written}; {agent}", tables.layout_version, tables.revision);
    rows.insert(1, ("TABLES", tables));
    let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or_default();
    let lines: Vec<String> = rows.iter().map(|(label, said)| format!("{label:width$}  {said}")).collect();
    lines.join("\n") + "\n"
}
