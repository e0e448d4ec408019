//! The agent's report over a unix socket in `--run-dir`: each connection gets one JSON document, then the end.

use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::report::Report;

/// Name of the socket in `--run-dir`.
pub const SOCKET: &str = "agent.sock";
/// A report is a few kilobytes; a node with 16 384 links stays well below this.
const MAX_REPORT_BYTES: u64 = 64 << 20;
/// An agent that does not answer in this time is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many readers are served at a time.
const READERS: usize = 8;

/// Why the agent said nothing.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent is running with this --run-dir ({} does not answer)", path.display())]
    NotRunning { path: PathBuf },
    #[error("may not ask the agent at {}: run as root", path.display())]
    Denied { path: PathBuf },
    #[error("the agent at {} did not give a report: {error}", path.display())]
    NoReport { path: PathBuf, error: io::Error },
}

/// Asks the agent.
pub fn ask(run_dir: &Path) -> Result<Report, AskError> {
    let path = run_dir.join(SOCKET);
    let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NotRunning { path: path.clone() },
        io::ErrorKind::PermissionDenied => AskError::Denied { path: path.clone() },
        _ => AskError::NoReport { path: path.clone(), error },
    })?;
    let read = || -> io::Result<Report> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut json = Vec::new();
        (&stream).take(MAX_REPORT_BYTES).read_to_end(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    };
    read().map_err(|error| AskError::NoReport { path: path.clone(), error })
}

/// Listens in the folder, which must exist; a socket left over by a dead agent is replaced (the lock is held by us).
pub fn listen(run_dir: &Path) -> io::Result<UnixListener> {
    let path = run_dir.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Takes the socket away: its absence says that no agent runs.
pub fn remove(run_dir: &Path) {
    // One that is left is taken for a dead agent's, and replaced.
    let _ = std::fs::remove_file(run_dir.join(SOCKET));
}

/// Answers every connection with a fresh report, until dropped.
pub async fn serve(listener: UnixListener, report: impl Fn() -> Report + Send + Sync + 'static) {
    let (report, readers) = (std::sync::Arc::new(report), std::sync::Arc::new(Semaphore::new(READERS)));
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: let others give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (report, readers) = (report.clone(), readers.clone());
        tokio::spawn(async move {
            let Ok(_permit) = readers.acquire().await else { return };
            let json = serde_json::to_vec(&report()).unwrap_or_default();
            // A reader that went away, or does not read, is its own problem.
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&json)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reader_gets_the_report() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let listener = listen(dir.path()).expect("a socket");
        tokio::spawn(serve(listener, || Report { pid: 42, node_name: "n1".into(), ..Report::default() }));
        let path = dir.path().to_owned();
        let report = tokio::task::spawn_blocking(move || ask(&path)).await.expect("no panic").expect("a report");
        assert_eq!((report.pid, report.node_name.as_str()), (42, "n1"));
    }

    #[tokio::test]
    async fn a_left_over_socket_is_no_agent_and_is_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        drop(listen(dir.path()).expect("a socket"));
        assert!(matches!(ask(dir.path()), Err(AskError::NotRunning { .. })));
        listen(dir.path()).expect("replaced");
    }

    #[test]
    fn no_socket_is_no_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = ask(dir.path()).expect_err("nobody there").to_string();
        assert!(error.contains("no agent is running") && error.contains("agent.sock"), "{error}");
    }
}
