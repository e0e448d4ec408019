//! The commands that the listener runs: an allow-list of those that only read, with the options that name no file and no address to connect to.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::answer::CommandOutput;

/// How many commands run at the same time.
const AT_ONCE: usize = 2;
/// How long one may take; a sysdump reads many things.
const LIMIT: Duration = Duration::from_secs(20);
const SYSDUMP_LIMIT: Duration = Duration::from_secs(100);
/// More of its output is an error.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// How many arguments there may be, and how long each.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_BYTES_MAX: usize = 512;

/// A command that only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Get,
    Explain,
    Sysdump,
}

/// Why a command is not run, or has no output.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0} is not allowed from another node: run it on the node itself")]
    NotAllowed(String),
    #[error("{AT_ONCE} commands run already: ask again in a moment")]
    Busy,
    #[error("the command did not end within {0:?}")]
    Late(Duration),
    #[error("the command says more than {OUTPUT_BYTES_MAX} bytes: ask for less")]
    TooLong,
    #[error("the command cannot be run: {0}")]
    Failed(std::io::Error),
}

impl Reading {
    pub const ALL: [Self; 3] = [Self::Get, Self::Explain, Self::Sysdump];

    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Explain => "explain",
            Self::Sysdump => "sysdump",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::Get => "/fleet/get",
            Self::Explain => "/fleet/explain",
            Self::Sysdump => "/fleet/sysdump",
        }
    }

    fn limit(self) -> Duration {
        if self == Self::Sysdump { SYSDUMP_LIMIT } else { LIMIT }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Get => &[
                "-n",
                "--namespace",
                "-A",
                "--all-namespaces",
                "--service",
                "--client",
                "--backend",
                "--state",
                "-o",
                "--output",
                "--sockets",
                "--rate",
            ],
            Self::Explain => &["--hook", "-o", "--output"],
            Self::Sysdump => &[],
        }
    }

    /// Refuses an argument that looks like an option and is none of the list; a value that begins with a dash is one of those.
    pub fn check(self, arguments: &[String]) -> Result<(), CommandError> {
        let refused = |what: &str| Err(CommandError::NotAllowed(what.to_owned()));
        if arguments.len() > ARGUMENTS_MAX {
            return refused(&format!("a command with more than {ARGUMENTS_MAX} arguments"));
        }
        if self == Self::Sysdump && !arguments.is_empty() {
            return refused("a sysdump with arguments");
        }
        for argument in arguments {
            if argument.len() > ARGUMENT_BYTES_MAX || argument.contains('\0') {
                return refused("such an argument");
            }
            let option = argument.split('=').next().unwrap_or_default();
            if argument.starts_with('-') && !self.options().contains(&option) {
                return refused(option);
            }
        }
        Ok(())
    }
}

/// Runs this program's own commands on this node.
#[derive(Debug)]
pub struct Commands {
    /// This program.
    pub program: PathBuf,
    /// Options that each command takes: the folders of the agent.
    pub folders: Vec<String>,
    /// Options of a sysdump: where the metrics are.
    pub sysdump: Vec<String>,
    running: Semaphore,
}

impl Commands {
    pub fn new(program: PathBuf, folders: Vec<String>, sysdump: Vec<String>) -> Self {
        Self { program, folders, sysdump, running: Semaphore::new(AT_ONCE) }
    }

    /// Runs one of them to its end. The bytes are its output.
    pub async fn run(&self, reading: Reading, arguments: &[String]) -> Result<(Vec<u8>, CommandOutput), CommandError> {
        reading.check(arguments)?;
        let _place = self.running.try_acquire().map_err(|_| CommandError::Busy)?;
        let mut command = Command::new(&self.program);
        command.env_clear().arg(reading.name()).args(&self.folders);
        if reading == Reading::Sysdump {
            command.args(&self.sysdump).arg("-");
        }
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(CommandError::Failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = async {
            let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr))?;
            let status = child.wait().await.map_err(CommandError::Failed)?;
            let exit_code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
            let stderr = String::from_utf8_lossy(&stderr).into_owned();
            Ok((stdout, CommandOutput { exit_code, stderr, ..CommandOutput::default() }))
        };
        timeout(reading.limit(), ended).await.map_err(|_| CommandError::Late(reading.limit()))?
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return Ok(bytes) };
    pipe.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes).await.map_err(CommandError::Failed)?;
    if bytes.len() as u64 > OUTPUT_BYTES_MAX { Err(CommandError::TooLong) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_that_name_files_or_change_anything_are_refused() {
        for good in ["services", "services -A -o json", "backends --state=draining", "connections --client 10.0.0.1"] {
            assert!(Reading::Get.check(&words(good)).is_ok(), "{good}");
        }
        for bad in [
            "services --bpffs /elsewhere",
            "services --run-dir=/elsewhere",
            "services -n --bpffs",
            "services -w",
            "services --watch",
            "services --",
            "-ojson services",
        ] {
            assert!(Reading::Get.check(&words(bad)).is_err(), "{bad}");
        }
        assert!(Reading::Explain.check(&words("10.0.0.1 svc/demo/web --hook pod_in -o json")).is_ok());
        assert!(Reading::Explain.check(&words("10.0.0.1 svc/demo/web --bpffs=/x")).is_err());
        assert!(Reading::Sysdump.check(&[]).is_ok());
        assert!(Reading::Sysdump.check(&words("/etc/passwd")).is_err());
        assert!(Reading::Get.check(&vec!["a".to_owned(); ARGUMENTS_MAX + 1]).is_err());
    }

    #[tokio::test]
    async fn a_command_gives_its_output_and_its_exit_code() {
        let script = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(script.path(), "echo \"$@\"; echo why >&2; exit 3\n").expect("writable");
        let folders = vec!["--bpffs".to_owned(), "/b".to_owned()];
        let mut commands = Commands::new("/bin/sh".into(), folders, Vec::new());
        // The shell takes the command's name for a script, which is not there.
        let (_, output) = commands.run(Reading::Get, &words("services")).await.expect("it runs");
        assert!(output.exit_code != 0 && !output.stderr.is_empty(), "{output:?}");
        commands.program = "/nowhere/ballast".into();
        assert!(matches!(commands.run(Reading::Get, &[]).await, Err(CommandError::Failed(_))));
    }
}
