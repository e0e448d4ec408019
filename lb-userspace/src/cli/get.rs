//! `ballast get`: lists read from the pinned maps, whether an agent runs or not.

use clap::{Args, ValueEnum};

use super::output::{Format, render};
use super::{Place, print};
use crate::agent::clock;
use crate::datapath::maps_dir;
use crate::observe::contents::{Contents, Wanted};
use crate::observe::inventory::{Inventory, Items};
use crate::observe::text;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    what: What,

    /// Only this namespace [default: all of them]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Services of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Connections only: also host sockets translated at connect, some of which may be closed already
    #[arg(long)]
    sockets: bool,

    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Service ports with their frontends and backends
    #[value(alias = "service", alias = "svc")]
    Services,
    /// Endpoints of service ports, grouped by address
    #[value(alias = "backend")]
    Backends,
    /// Connections of clients to services
    #[value(alias = "connection", alias = "flows")]
    Connections,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let contents = Contents::read(&maps_dir(&arguments.place.bpffs), arguments.wanted())?;
    print(&list(arguments, &Inventory::new(&contents, clock::monotonic()))?)
}

impl Arguments {
    fn wanted(&self) -> Wanted {
        let table = matches!(self.output, Format::Table | Format::Wide);
        Wanted {
            flows: self.what != What::Services || table,
            sockets: self.what == What::Connections && self.sockets,
            stats: self.output == Format::Wide && self.what != What::Connections,
        }
    }

    fn wants(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
    }
}

fn list(arguments: &Arguments, inventory: &Inventory<'_>) -> anyhow::Result<String> {
    match arguments.what {
        What::Services => {
            let mut items = inventory.services();
            items.retain(|item| arguments.wants(&item.namespace));
            let items = Items { items };
            render(arguments.output, &items, |wide| text::services(&items.items, wide))
        }
        What::Backends => {
            let mut items = inventory.backends();
            items.retain(|item| arguments.wants(&item.namespace));
            let items = Items { items };
            render(arguments.output, &items, |wide| text::backends(&items.items, wide))
        }
        What::Connections => {
            let mut items = inventory.connections();
            items.retain(|item| arguments.wants(&item.namespace));
            let items = Items { items };
            render(arguments.output, &items, |wide| text::connections(&items.items, wide))
        }
    }
}
