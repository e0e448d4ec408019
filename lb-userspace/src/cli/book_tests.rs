//! The command line understands every `ballast` and `kubectl ballast` command of the pages, and the maps that `bpftool` is asked for are there.

use clap::{Parser, error::ErrorKind};
use lb_common::abi::map_name;
use lb_pages::commands::{self, Command};

use super::Cli;
use super::fleet::Plugin;

/// How many commands of this program there are. Fails at one that is not understood.
fn understood<T: Parser>(program: &str) -> usize {
    let parsed = |command: &Command| {
        let arguments = command.arguments(program)?;
        let Err(error) = T::try_parse_from(std::iter::once(program.to_owned()).chain(arguments)) else {
            return Some(());
        };
        // Prose names commands without their arguments.
        let is_name = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        let at = format!("{}:{}: `{}`", command.page, command.line, command.text);
        assert!(is_name && command.block.is_none(), "{at}: {error}");
        Some(())
    };
    commands::all().iter().filter_map(parsed).count()
}

#[test]
fn every_command_of_the_book_is_understood() {
    let counts = [understood::<Cli>("ballast"), understood::<Plugin>("kubectl ballast")];
    assert!(counts[0] > 100 && counts[1] >= 3, "{counts:?} commands were found");
}

#[test]
fn bpftool_is_asked_for_maps_that_there_are() {
    let maps = commands::all().into_iter().filter_map(|command| {
        let words = command.arguments("bpftool map")?;
        let path = words.iter().skip_while(|word| *word != "pinned").nth(1)?;
        Some((path.rsplit('/').next()?.to_owned(), command))
    });
    let mut count = 0;
    for (map, command) in maps {
        let is_there = map_name::ALL.contains(&map.as_str());
        assert!(is_there, "{}:{}: there is no map {map}", command.page, command.line);
        count += 1;
    }
    assert!(count > 10, "{count} maps were found");
}
