//! One file of the archive, and where its contents come from.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_tables::pause::pause;

/// The least that an item may take, and what it may not exceed.
const ITEM_LIMIT: Duration = Duration::from_secs(30);
/// More of one item is cut off.
pub(super) const ITEM_BYTES_MAX: usize = 32 << 20;
/// How often a command is asked whether it has ended.
const POLL: Duration = Duration::from_millis(10);
const POLLS_MAX: u128 = ITEM_LIMIT.as_millis() / POLL.as_millis();
/// Processes whose command lines are of interest.
const PROCESSES: [&str; 3] = ["ballast", "kube-proxy", "kubelet"];

/// Where the agent has its maps, its run folder and its metrics.
#[derive(Clone, Debug)]
pub struct Locations {
    pub bpffs: PathBuf,
    pub run_dir: PathBuf,
    /// Where the agent has its metrics.
    pub metrics: SocketAddr,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its name in the archive.
    pub name: String,
    pub source: Source,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// This program with these arguments.
    Command(&'static [&'static str]),
    File(&'static str),
    Metrics(SocketAddr),
    /// The eBPF programs and maps of the kernel.
    Programs,
    Maps,
    Processes,
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(arguments) => write!(f, "ballast {}", arguments.join(" ")),
            Self::File(path) => f.write_str(path),
            Self::Metrics(address) => write!(f, "http://{address}/metrics"),
            Self::Programs => f.write_str("eBPF programs of the kernel"),
            Self::Maps => f.write_str("eBPF maps of the kernel"),
            Self::Processes => write!(f, "command lines of {}", PROCESSES.join(", ")),
        }
    }
}

/// The contents; what went wrong.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub bytes: Vec<u8>,
    pub problem: Option<String>,
}

impl Item {
    pub fn read(&self, settings: &Locations) -> Contents {
        let read = match self.source {
            Source::Command(arguments) => return command(arguments, settings),
            Source::File(path) => std::fs::read(path),
            Source::Metrics(address) => metrics(address),
            Source::Programs => Ok(programs().into_bytes()),
            Source::Maps => Ok(maps().into_bytes()),
            Source::Processes => processes().map(String::into_bytes),
        };
        match read {
            Ok(bytes) => Contents { bytes, problem: None },
            Err(error) => Contents { bytes: Vec::new(), problem: Some(error.to_string()) },
        }
    }
}

/// Runs this program; what it says in errors stands in the index.
fn command(arguments: &[&str], settings: &Locations) -> Contents {
    let run = || -> io::Result<Contents> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        if arguments != ["version"] {
            command.arg("--bpffs").arg(&settings.bpffs).arg("--run-dir").arg(&settings.run_dir);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let [output, errors] = [
            child.stdout.take().map(|pipe| read_all(Box::new(pipe))),
            child.stderr.take().map(|pipe| read_all(Box::new(pipe))),
        ];
        let mut polls = 0;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if polls == POLLS_MAX => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => pause(POLL),
            }
            polls += 1;
        };
        let all = |reader: Option<Reader>| reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        let (bytes, errors) = (all(output), String::from_utf8_lossy(&all(errors)).trim().replace('\n', "; "));
        let problem = match status {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("{status}: {errors}")),
            None => Some(format!("no end within {ITEM_LIMIT:?}")),
        };
        Ok(Contents { bytes, problem })
    };
    run().unwrap_or_else(|error| Contents { bytes: Vec::new(), problem: Some(error.to_string()) })
}

type Reader = std::thread::JoinHandle<Vec<u8>>;

/// A pipe that nobody reads would stop the command.
fn read_all(mut pipe: Box<dyn Read + Send>) -> Reader {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The end of what a killed command has written is lost.
        let _ = pipe.by_ref().take(ITEM_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
        bytes
    })
}

fn metrics(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, ITEM_LIMIT)?;
    stream.set_read_timeout(Some(ITEM_LIMIT))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ITEM_BYTES_MAX as u64).read_to_end(&mut answer)?;
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
    Ok(answer.split_off(body))
}

fn programs() -> String {
    let mut text = "id name type verified-instructions memory-bytes\n".to_owned();
    for program in aya::programs::loaded_programs().flatten() {
        let kind = format!("{:?}", program.program_type());
        let (name, verified) = (program.name_as_str().unwrap_or("-"), program.verified_instruction_count());
        let (verified, memory) = (verified.unwrap_or_default(), program.memory_locked().unwrap_or_default());
        let _ = writeln!(text, "{} {name} {kind} {verified} {memory}", program.id());
    }
    text
}

fn maps() -> String {
    let mut text = "id name type key-bytes value-bytes entries-max\n".to_owned();
    for map in aya::maps::loaded_maps().flatten() {
        let kind = map.map_type().map_or_else(|_| "unknown".to_owned(), |kind| format!("{kind:?}"));
        let name = map.name_as_str().unwrap_or("-");
        let _ =
            writeln!(text, "{} {name} {kind} {} {} {}", map.id(), map.key_size(), map.value_size(), map.max_entries());
    }
    text
}

fn processes() -> io::Result<String> {
    let mut text = String::new();
    for process in procfs::process::all_processes().map_err(io::Error::other)?.flatten() {
        let Ok(stat) = process.stat() else { continue };
        if PROCESSES.contains(&stat.comm.as_str()) {
            let line = process.cmdline().unwrap_or_default().join(" ");
            let _ = writeln!(text, "{} {line}", process.pid());
        }
    }
    Ok(text)
}
