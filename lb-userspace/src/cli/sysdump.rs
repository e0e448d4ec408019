//! `ballast sysdump`: one archive of this node for a bug report; works without an agent.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::agent_dirs::AgentDirs;
use super::output::complain;
use super::progress::Progress;
use crate::agent::clock;
use crate::sysdump::{Locations, write};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The archive; `-` is standard output [default: ballast-sysdump-TIME.tar.gz in the current folder]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The agent's --metrics-bind
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10249")]
    metrics: SocketAddr,

    #[command(flatten)]
    dirs: AgentDirs,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let now = clock::wall();
    let name = format!("ballast-sysdump-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let made_s = u64::try_from(now.as_second()).unwrap_or_default();
    let settings = Locations {
        bpffs: arguments.dirs.bpffs.clone(),
        run_dir: arguments.dirs.run_dir.clone(),
        metrics: arguments.metrics,
    };
    let line = Progress::start("reading");
    let progress = |item: &str| line.say(format!("reading {item}"));
    let file = arguments.file.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    if file == Path::new("-") {
        let failed =
            write(&settings, &name, made_s, io::stdout().lock(), progress).context("cannot write the archive")?;
        drop(line);
        tell_failed(failed);
        return Ok(());
    }
    let mut open = File::options();
    open.write(true).create_new(true);
    // What it holds is for those who may read the tables.
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    let archive = open.open(&file).with_context(|| format!("cannot make {}", file.display()))?;
    let failed = write(&settings, &name, made_s, io::BufWriter::new(archive), progress)
        .with_context(|| format!("cannot write {}", file.display()))?;
    drop(line);
    tell_failed(failed);
    writeln!(io::stdout(), "{}", file.display())?;
    Ok(())
}

fn tell_failed(failed: usize) {
    if failed > 0 {
        complain(format_args!("{failed} items could not be read in full: INDEX.txt of the archive says why"));
    }
}
