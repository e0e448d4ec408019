//! Defaults and bounds are those that the agent has, and the book's page of options is made of them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::{Args as _, Command, FromArgMatches as _};
use lb_common::state::Timeouts;

use super::*;
use crate::config::{FlowTimeouts, Options, Settings};

/// Options without a meaning for a file as source, or that must be given together.
const SOURCE: &str = "--source=kube";

fn settle(flags: &[String]) -> Result<Settings, String> {
    let command = Options::augment_args(Command::new("agent").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).map_err(|error| error.to_string())?;
    let options = Options::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    options.settle(Some("host")).map_err(|error| error.to_string())
}

fn arguments() -> Vec<Arg> {
    Options::augment_args(Command::new("agent")).get_arguments().cloned().collect()
}

fn flag(argument: &Arg) -> &str {
    argument.get_long().expect("every option is a flag")
}

#[test]
fn every_option_has_its_facts() {
    for argument in arguments() {
        assert!(of(argument.get_id().as_str()).is_some(), "{}", flag(&argument));
    }
}

#[test]
fn a_default_that_is_given_changes_nothing() {
    let without = settle(&[SOURCE.to_owned()]).expect("valid");
    for argument in arguments() {
        let Some(Default::Value(value)) = of(argument.get_id().as_str()).map(|facts| facts.default) else { continue };
        let flags = [SOURCE.to_owned(), format!("--{}={value}", flag(&argument))];
        let with = settle(&flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        assert_eq!(with, without, "{flags:?}");
    }
}

#[test]
fn bounds_of_time_are_those_of_the_option() {
    for argument in arguments() {
        let Some(facts) = of(argument.get_id().as_str()) else { continue };
        let ends = facts
            .bounds
            .strip_prefix("at most ")
            .map_or_else(|| facts.bounds.split_once(" to "), |most| Some(("0s", most)));
        let is_time = argument.get_value_names().is_some_and(|names| names[0].starts_with("DURATION"));
        let Some((least, most)) = ends.filter(|_| is_time) else {
            assert!(!is_time, "{} has no bounds", flag(&argument));
            continue;
        };
        let takes = |value: &str| settle(&[SOURCE.to_owned(), format!("--{}={value}", flag(&argument))]).is_ok();
        assert!(takes(least) && takes(most) && !takes(&format!("{most} 1s")), "{}: {least} to {most}", flag(&argument));
    }
}

#[test]
fn help_names_default_and_bounds() {
    let help = Options::augment_args(Command::new("agent")).render_long_help().to_string();
    for text in
        ["without its answer; at most 24h [default: 30s]", "1 to 10000 each [default: per-second=200,in-flight=128]"]
    {
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(text), "{text}: {help}");
    }
    let has_default = |argument: &Arg| argument.get_help().is_some_and(|help| help.to_string().contains("[default: "));
    let without: Vec<_> = arguments().into_iter().filter(|argument| !has_default(argument)).collect();
    let without: Vec<_> = without.iter().map(flag).collect();
    assert_eq!(without, ["source", "flow-timeouts", "map-sizes"], "what must be given, and those with tables");
}

#[test]
fn durations_are_written_as_they_are_read() {
    for text in ["0s", "30s", "1m", "1m30s", "2h15m", "24h", "120h"] {
        let read = humantime::parse_duration(text).expect("a duration");
        assert_eq!(duration(read), text);
    }
}

const INTRODUCTION: &str = "# Options of the agent

All options of `ballast agent`, with what holds where they are not given. [Configuration](../configuration.md) says how to give them, and when to
change one.

| form | meaning |
|---|---|
| `DURATION` | a number and its unit, also several: `30s`, `10m`, `2h15m` |
| `CIDR,…` | networks of both families, separated by commas: `10.244.0.0/16,fd00:10::/56` |
| `NAME=…,…` | several values by name. Names that are left out keep their defaults. In YAML also a mapping |
| `GLOB,…` | names of interfaces; `*` and `?` stand for any characters, and for one |
| `ADDRESS:PORT` | an address of the node and a TCP port: `127.0.0.1:10249`, `[::]:10256` |

| option | value | default | bounds | meaning |
|---|---|---|---|---|
";

#[test]
fn the_reference_has_every_option() {
    let mut page = INTRODUCTION.to_owned();
    for argument in arguments() {
        let Facts { default, bounds } = of(argument.get_id().as_str()).expect("facts");
        let default = match default {
            Default::Required => "must be given".to_owned(),
            Default::Value(value) => format!("`{}`", value.replace(',', ",` `")),
            Default::Words(words) => words.to_owned(),
            Default::Table => format!("[below](#{})", flag(&argument)),
        };
        let form = argument.get_value_names().expect("a value")[0].replace('|', "\\|");
        let meaning = meaning(&argument).replace('|', "\\|");
        writeln!(page, "| `--{}` | `{form}` | {default} | {bounds} | {meaning} |", flag(&argument))
            .expect("a string takes all");
    }
    write_sizes(&mut page);
    write_timeouts(&mut page);
    lb_pages::is_current("options.md", &page);
}

/// The help without what [`describe`] has added.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let Facts { bounds, .. } = of(argument.get_id().as_str()).expect("facts");
    let help = help.rsplit_once(" [default: ").map_or(help.as_str(), |(before, _)| before);
    let help = if bounds.is_empty() { help } else { help.strip_suffix(&format!("; {bounds}")).unwrap_or(help) };
    help.to_owned()
}

fn write_sizes(page: &mut String) {
    writeln!(
        page,
        "\n## map-sizes\n\nEach name sizes the maps of both families, {MIN_MAP_ENTRIES} to {MAX_MAP_ENTRIES} entries each. \
         [Layouts of the maps](map-layouts.md) says how\nmany bytes an entry takes, and what the map takes in all.\n\n\
         | name | default, entries | maps |\n|---|---:|---|"
    )
    .expect("a string takes all");
    for (name, entries) in MapSizes::ALL {
        let maps: Vec<_> = MapSizes::maps(name).map(|map| format!("[`{map}`](map-layouts.md#{map})")).collect();
        writeln!(page, "| `{name}` | {entries} | {} |", maps.join(", ")).expect("a string takes all");
    }
}

fn write_timeouts(page: &mut String) {
    page.push_str(
        "\n## flow-timeouts\n\nTCP, and SCTP by its own chunks: `half-open`, `open`, `closing`. A change holds for connections that are there as well.\n\n`open` holds once half of the map of established connections (`flows4`, `flows6`) is taken. Before, no open connection is forgotten within 24 h.\n\n\
         | name | default | bounds |\n|---|---|---|\n",
    );
    let FlowTimeouts(mut timeouts) = FlowTimeouts::default();
    assert_eq!(timeouts, Timeouts::DEFAULT);
    for timeout in &flow_timeouts::ALL {
        let default = duration(Duration::from_secs((*(timeout.of)(&mut timeouts)).into()));
        writeln!(page, "| `{}` | `{default}` | {} |", timeout.name, bounds_text(timeout.bounds))
            .expect("a string takes all");
    }
}

#[test]
fn addresses_of_the_defaults_are_addresses() {
    for address in [defaults::DEFAULT_METRICS_BIND, defaults::DEFAULT_HEALTH_BIND] {
        assert!(address.parse::<SocketAddr>().is_ok(), "{address}");
    }
}
