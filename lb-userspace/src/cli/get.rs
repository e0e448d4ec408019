//! `ballast get`: lists read from the pinned maps, whether an agent runs or not.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};

use super::filter::Filter;
use super::output::{Format, render};
use super::{AgentDirs, print};
use crate::agent::clock;
use crate::datapath::maps_dir;
use crate::maps::MapError;
use crate::observe::contents::{Contents, Wanted, WantedFlows};
use crate::observe::inventory::{Inventory, Items};
use crate::observe::{rates, text};

/// Between the two readings of `--rate`.
const BETWEEN_READINGS: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    what: What,

    #[command(flatten)]
    filter: Filter,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Connections only: also open host sockets that were translated at connect
    #[arg(long)]
    sockets: bool,

    /// Services only: new connections, packets and bytes in a second, from two readings one second apart
    #[arg(long)]
    rate: bool,

    #[command(flatten)]
    dirs: AgentDirs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Service ports with their frontends and backends
    #[value(alias = "service", alias = "svc")]
    Services,
    /// Endpoints of service ports, grouped by address
    #[value(alias = "backend")]
    Backends,
    /// Backends whose connections end at a limit, the one with the next eviction deadline first
    #[value(alias = "drain")]
    Drains,
    /// Connections of clients to services
    #[value(alias = "connection", alias = "flows")]
    Connections,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.what {
        What::Services => arguments.filter.check_services()?,
        What::Backends => arguments.filter.check_backends("backends")?,
        What::Drains => arguments.filter.check_backends("drains")?,
        What::Connections => arguments.filter.check_connections()?,
    }
    if arguments.rate {
        return rate(arguments);
    }
    let contents = Contents::read(&maps_dir(&arguments.dirs.bpffs), arguments.wanted())?;
    print(&list(arguments, &Inventory::new(&contents, clock::monotonic()))?)
}

/// Prints rates once.
fn rate(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.what != What::Services {
        bail!("--rate applies to services, with their backends: ask for services");
    }
    let dir = maps_dir(&arguments.dirs.bpffs);
    let is_counted = Contents::read(&dir, Wanted::default())?.settings.flow_counters != 0;
    let flows = if is_counted { WantedFlows::WithTraffic } else { WantedFlows::None };
    let wanted = Wanted { flows, stats: true, ..Wanted::default() };
    let read = || Ok::<_, MapError>((clock::monotonic(), Contents::read(&dir, wanted)?));
    let (begin, before) = read()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async { tokio::time::sleep(BETWEEN_READINGS).await });
    let (end, after) = read()?;
    let (before, after) = (Inventory::new(&before, begin), Inventory::new(&after, end));
    let mut services = after.services();
    services.retain(|item| arguments.filter.service(item));
    let items = Items { items: rates::rates(&before, &after, &services, end.since(begin).as_secs_f64()) };
    if !is_counted {
        eprintln!("ballast: packets and bytes are counted by an agent with --flow-counters on");
    }
    print(&render(arguments.output, &items, |_| rates::table(&items.items, is_counted))?)
}

impl Arguments {
    fn wanted(&self) -> Wanted {
        let table = matches!(self.output, Format::Table | Format::Wide);
        let connections = self.what == What::Connections;
        Wanted {
            flows: match (self.what, table) {
                (What::Connections, _) if self.output != Format::Table => WantedFlows::WithTraffic,
                (What::Services, false) => WantedFlows::None,
                _ => WantedFlows::All,
            },
            health: !connections,
            sockets: connections && self.sockets,
            stats: self.output == Format::Wide && !connections,
        }
    }
}

fn list(arguments: &Arguments, inventory: &Inventory<'_>) -> anyhow::Result<String> {
    let (filter, output) = (&arguments.filter, arguments.output);
    match arguments.what {
        What::Services => {
            let mut items = inventory.services();
            items.retain(|item| filter.service(item));
            let items = Items { items };
            render(output, &items, |wide| text::services(&items.items, wide))
        }
        What::Backends | What::Drains => {
            let drains = arguments.what == What::Drains;
            let mut items = if drains { inventory.drains() } else { inventory.backends() };
            items.retain(|item| filter.backend(item));
            let items = Items { items };
            let table = if drains { text::drains } else { text::backends };
            render(output, &items, |wide| table(&items.items, wide))
        }
        What::Connections => {
            let mut items = inventory.connections();
            items.retain(|item| filter.connection(item));
            let items = Items { items };
            render(output, &items, |wide| text::connections(&items.items, wide))
        }
    }
}
