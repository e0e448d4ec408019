//! Every `cargo xtask` command of the pages is one that the command line understands, and its rungs are there.

use std::path::Path;

use clap::{Parser as _, error::ErrorKind};

use super::rung::ladder;
use crate::{Cli, Command};

fn rungs() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
    ladder(root, false).expect("the ladder").into_iter().map(|rung| rung.name).collect()
}

#[test]
fn every_command_of_the_pages_is_understood() {
    let (rungs, mut count) = (rungs(), 0);
    for command in lb_pages::commands::all() {
        let Some(arguments) = command.arguments("cargo xtask") else { continue };
        let at = format!("{}:{}: `{}`", command.page, command.line, command.text);
        count += 1;
        match Cli::try_parse_from(std::iter::once("xtask".to_owned()).chain(arguments)) {
            Ok(Cli { command: Command::Test(args) }) => {
                let unknown: Vec<_> = args.rungs.iter().filter(|name| !rungs.contains(name)).collect();
                assert!(unknown.is_empty(), "{at}: there is no rung {unknown:?}");
            }
            Ok(_) => {}
            // Prose names commands without their arguments.
            Err(error) => {
                let is_name = error.kind() == ErrorKind::MissingRequiredArgument && command.block.is_none();
                assert!(is_name, "{at}: {error}");
            }
        }
    }
    assert!(count > 50, "{count} commands were found");
}
