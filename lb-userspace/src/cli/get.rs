//! `ballast get`: lists read from the pinned maps, whether an agent runs or not.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::agent_dirs::AgentDirs;
use super::filter::Filter;
use super::output::{Format, complain, print, printed, render, sentence};
use super::{colour, pace, sort};
use crate::agent::clock;
use crate::observe::contents::{Contents, Wanted, WantedFlows};
use crate::observe::inventory::{ConnectionView, Inventory, Items, ServiceView};
use crate::observe::rates::{self, Reading, ServiceRates};
use crate::observe::report::EndpointProblemReport;
use crate::observe::report_socket;
use crate::observe::table::{or_dash, place};
use crate::observe::text;
use lb_datapath::maps_dir;
use lb_tables::MapError;
use lb_tables::pause::pause;

/// Between the two readings of `--rate`.
const BETWEEN_READINGS: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    what: What,

    #[command(flatten)]
    filter: Filter,

    #[arg(short, long, value_enum, default_value_t)]
    output: ListFormat,

    /// Sort by this column: counts and rates with the largest first, all else ascending
    #[arg(long, value_name = "COLUMN")]
    sort_by: Option<String>,

    /// Print the list again at each interval, until Ctrl-C; a reading that fails is reported, and the next one follows
    #[arg(short, long)]
    watch: bool,

    /// Time between the lists of --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = pace::interval, requires = "watch")]
    interval: Duration,

    /// Connections only: also open host sockets that were translated at connect
    #[arg(long)]
    sockets: bool,

    /// Services only: new connections, packets and bytes in a second, from two readings one second apart, or one interval of --watch
    #[arg(long)]
    rate: bool,

    #[command(flatten)]
    dirs: AgentDirs,
}

/// How to print a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    #[default]
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
    /// Names alone, as --service, --backend and --client take them
    Name,
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
    arguments.check()?;
    let mut lists = Lists { arguments, dir: maps_dir(&arguments.dirs.bpffs), earlier: None };
    if arguments.watch {
        return lists.watch();
    }
    if arguments.rate {
        lists.earlier = Some(lists.reading()?.0);
        pause(BETWEEN_READINGS);
    }
    print(&lists.next()?)
}

/// The lists that are printed one after the other.
struct Lists<'a> {
    arguments: &'a Arguments,
    dir: PathBuf,
    /// The reading that rates are compared with.
    earlier: Option<Reading>,
}

impl Lists<'_> {
    /// Prints a list at each interval until standard output is closed, or a signal ends the process.
    fn watch(&mut self) -> anyhow::Result<()> {
        let mut is_first = true;
        loop {
            match self.next() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    let between = self.arguments.output.between(is_first);
                    if !printed(&format!("{between}{text}"))? {
                        return Ok(());
                    }
                    is_first = false;
                }
                Err(error) => complain(sentence(&error)),
            }
            pause(self.arguments.interval);
        }
    }

    /// The next list; empty where rates have nothing to be compared with.
    fn next(&mut self) -> anyhow::Result<String> {
        if self.arguments.rate {
            return self.rates();
        }
        let contents = Contents::read(&self.dir, self.arguments.wanted())?;
        let inventory = Inventory::new(&contents, clock::monotonic());
        // Without an agent nobody knows the slices.
        let slices = || self.arguments.dirs.ask(report_socket::ask).map(|report| report.tables.endpoint_problems);
        list(self.arguments, &inventory, || slices().unwrap_or_default())
    }

    fn rates(&mut self) -> anyhow::Result<String> {
        let (reading, is_counted) = self.reading()?;
        let text = match &self.earlier {
            None => String::new(),
            Some(earlier) => {
                let all = reading.services.iter().zip(rates::rates(earlier, &reading));
                let mut items: Vec<_> =
                    all.filter(|(service, _)| self.arguments.filter.service(service)).map(|(_, rates)| rates).collect();
                self.arguments.sort(&mut items, sort::RATES)?;
                if !is_counted {
                    complain("packets and bytes are counted by an agent with --flow-counters on");
                }
                let items = Items { items };
                let name = |item: &ServiceRates| format!("{}/{}:{}", item.namespace, item.name, item.port);
                self.arguments.render(&items, |_| rates::table(&items.items, is_counted), name)?
            }
        };
        self.earlier = Some(reading);
        Ok(text)
    }

    /// The tables now, and whether packets and bytes are counted.
    fn reading(&self) -> Result<(Reading, bool), MapError> {
        let is_counted = Contents::read(&self.dir, Wanted::default())?.settings.flow_counters != 0;
        let flows = if is_counted { WantedFlows::WithTraffic } else { WantedFlows::None };
        let at = clock::monotonic();
        let contents = Contents::read(&self.dir, Wanted { flows, stats: true, ..Wanted::default() })?;
        Ok((Reading::new(&contents, at, is_counted), is_counted))
    }
}

impl Arguments {
    fn check(&self) -> anyhow::Result<()> {
        match self.what {
            What::Services => self.filter.check_services()?,
            What::Backends => self.filter.check_backends("backends")?,
            What::Drains => self.filter.check_backends("drains")?,
            What::Connections => self.filter.check_connections()?,
        }
        if self.rate && self.what != What::Services {
            bail!("--rate applies to services, with their backends: ask for services");
        }
        match (self.what, self.rate) {
            (What::Services, true) => self.sort(&mut [], sort::RATES)?,
            (What::Services, false) => self.sort(&mut [], sort::SERVICES)?,
            (What::Backends | What::Drains, _) => self.sort(&mut [], sort::BACKENDS)?,
            (What::Connections, _) => self.sort(&mut [], sort::CONNECTIONS)?,
        }
        Ok(())
    }

    fn sort<T>(&self, items: &mut [T], columns: &[sort::Column<T>]) -> Result<(), sort::UnknownColumn> {
        self.sort_by.as_ref().map_or(Ok(()), |by| sort::sort(items, columns, by))
    }

    fn is_machine_read(&self) -> bool {
        matches!(self.output, ListFormat::Json | ListFormat::Yaml)
    }

    fn wanted(&self) -> Wanted {
        let connections = self.what == What::Connections;
        let counters = ["selected", "refused", "left"];
        let by_counter =
            self.sort_by.as_ref().is_some_and(|by| counters.iter().any(|name| by.eq_ignore_ascii_case(name)));
        let by_time =
            self.sort_by.as_ref().is_some_and(|by| ["p50", "p99"].iter().any(|name| by.eq_ignore_ascii_case(name)));
        Wanted {
            flows: match (self.what, self.output) {
                (What::Connections, ListFormat::Table | ListFormat::Name) if self.sort_by.is_none() => WantedFlows::All,
                (What::Connections, _) => WantedFlows::WithTraffic,
                (What::Services, ListFormat::Json | ListFormat::Yaml | ListFormat::Name) if self.sort_by.is_none() => {
                    WantedFlows::None
                }
                _ => WantedFlows::All,
            },
            health: !connections,
            sockets: connections && self.sockets,
            stats: (self.output == ListFormat::Wide || by_counter) && !connections,
            connect_times: (self.is_machine_read() || self.output == ListFormat::Wide || by_time) && !connections,
        }
    }

    /// The text to print. `name` is the name of an item, as the filters of `get` take it; one that several items in a row have is printed once.
    fn render<T: Serialize>(
        &self,
        items: &Items<T>,
        table: impl FnOnce(bool) -> String,
        name: impl Fn(&T) -> String,
    ) -> anyhow::Result<String> {
        let format = match self.output {
            ListFormat::Table => Format::Table,
            ListFormat::Wide => Format::Wide,
            ListFormat::Json if self.watch => return Ok(serde_json::to_string(items)? + "\n"),
            ListFormat::Json => Format::Json,
            ListFormat::Yaml => Format::Yaml,
            ListFormat::Name => {
                let mut names: Vec<String> = items.items.iter().map(name).collect();
                names.dedup();
                return Ok(names.into_iter().map(|name| name + "\n").collect());
            }
        };
        render(format, items, |wide| colour::states(table(wide)))
    }
}

impl ListFormat {
    /// What separates the lists of `--watch`.
    const fn between(self, is_first: bool) -> &'static str {
        match (self, is_first) {
            (Self::Yaml, _) => "---\n",
            (Self::Table | Self::Wide | Self::Name, false) => "\n",
            _ => "",
        }
    }
}

/// `problems`: asks the agent what is the matter with endpoints; not called for names alone.
fn list(
    arguments: &Arguments,
    inventory: &Inventory<'_>,
    problems: impl FnOnce() -> Vec<EndpointProblemReport>,
) -> anyhow::Result<String> {
    let filter = &arguments.filter;
    match arguments.what {
        What::Services => {
            let mut items = inventory.services();
            items.retain(|item| filter.service(item));
            arguments.sort(&mut items, sort::SERVICES)?;
            if arguments.output != ListFormat::Name {
                let known = problems();
                for item in &mut items {
                    item.take_problems(&known);
                }
            }
            let items = Items { items };
            let name = |item: &ServiceView| format!("{}/{}:{}", item.namespace, item.name, item.port);
            arguments.render(&items, |wide| text::services(&items.items, wide), name)
        }
        What::Backends | What::Drains => {
            let drains = arguments.what == What::Drains;
            let mut items = if drains { inventory.drains() } else { inventory.backends() };
            items.retain(|item| filter.backend(item));
            arguments.sort(&mut items, sort::BACKENDS)?;
            let items = Items { items };
            let table = if drains { text::drains } else { text::backends };
            arguments.render(&items, |wide| table(&items.items, wide), |item| place(item.address, item.port))
        }
        What::Connections => {
            let mut items = inventory.connections();
            items.retain(|item| filter.connection(item));
            arguments.sort(&mut items, sort::CONNECTIONS)?;
            let items = Items { items };
            arguments.render(&items, |wide| text::connections(&items.items, wide), client)
        }
    }
}

/// A socket has no client address: the kernel knows it by its cookie.
fn client(item: &ConnectionView) -> String {
    match (item.client_address, item.client_port, item.socket_cookie) {
        (Some(address), Some(port), _) => place(address, port),
        (_, _, cookie) => format!("socket:{}", or_dash(cookie)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::observe::inventory::tests::{NOW, contents};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn listed(line: &str) -> anyhow::Result<String> {
        listed_beside(line, Vec::new)
    }

    /// The list beside an agent that answers so.
    fn listed_beside(line: &str, problems: impl FnOnce() -> Vec<EndpointProblemReport>) -> anyhow::Result<String> {
        let line = std::iter::once("get").chain(line.split_whitespace());
        let arguments = Line::try_parse_from(line)?.arguments;
        arguments.check()?;
        list(&arguments, &Inventory::new(&contents(), NOW), problems)
    }

    #[test]
    fn a_service_port_without_backends_has_the_agents_reason() {
        let problem = |name: &str, partial| EndpointProblemReport {
            namespace: "other".into(),
            name: name.into(),
            port: 80,
            protocol: "TCP".into(),
            family: "IPv4".into(),
            text: "no endpoint is ready: 3 endpoints".into(),
            partial,
            ..EndpointProblemReport::default()
        };
        let known = || vec![problem("empty", false), problem("empty", true), problem("another", false)];
        let reason = "\nother/empty:80/TCP, IPv4: no endpoint is ready: 3 endpoints\n";
        for line in ["services", "services -o wide"] {
            let table = listed(line).expect("a list");
            assert_eq!(listed_beside(line, known).expect("a list"), format!("{table}{reason}"));
        }
        let json: serde_json::Value =
            serde_json::from_str(&listed_beside("services -o json", known).expect("a list")).expect("JSON");
        let found = &json["items"][1]["endpointProblems"];
        assert_eq!((found.as_array().map(Vec::len), &found[0]["partial"]), (Some(1), &false.into()));
        assert!(json["items"][0].get("endpointProblems").is_none(), "{json:#}");
        // For names nobody is asked.
        let unasked = || panic!("the agent is asked");
        listed_beside("services -o name", unasked).expect("a list");
    }

    #[test]
    fn names_are_those_that_the_filters_take() {
        assert_eq!(listed("services -o name").expect("a list"), "demo/web:80\nother/empty:80\n");
        assert_eq!(listed("backends -o name --state draining").expect("a list"), "10.1.0.3:8080\n");
        let clients = listed("connections -o name").expect("a list");
        assert!(clients.lines().next().expect("one").starts_with("10.1.0.9:"), "{clients}");
        for (list, option, name) in
            [("services", "--service", "demo/web:80"), ("backends", "--backend", "10.1.0.3:8080")]
        {
            let found = listed(&format!("{list} -o name {option} {name}")).expect("a list");
            assert_eq!(found, format!("{name}\n"));
        }
    }

    #[test]
    fn the_order_holds_for_tables_and_json() {
        let table = listed("backends --sort-by deadline").expect("a list");
        assert!(table.lines().nth(1).expect("a row").starts_with("10.1.0.3:8080"), "{table}");
        let json = listed("backends --sort-by deadline -o json").expect("a list");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["items"][0]["address"], "10.1.0.3");
        let error = listed("backends --sort-by nonsense").expect_err("no column").to_string();
        assert!(error.contains("FLOWS"), "{error}");
    }

    #[test]
    fn each_list_of_a_watch_is_a_line_of_json() {
        let json = listed("backends --watch -o json").expect("a list");
        assert_eq!(json.lines().count(), 1, "{json}");
        assert!(listed("backends --interval 1s").is_err(), "an interval is one of a watch");
    }
}
