//! The store of the API: an etcd that a test can compact, copy and take back to what it was.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::process::Process;
use super::{START_LIMIT, binary};
use crate::topology::NetNs;

/// How long one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// A running etcd. Dropped, it is killed; its data stays in the directory that it was given.
#[derive(Debug)]
pub struct Store {
    process: Option<Process>,
    directory: PathBuf,
    at: SocketAddr,
    peer: SocketAddr,
    netns: Option<NetNs>,
}

/// A copy of a store's data, as of one moment.
#[derive(Debug)]
pub struct Backup(tempfile::TempDir);

impl Store {
    pub fn start(directory: &Path, at: SocketAddr, peer: SocketAddr, netns: Option<&NetNs>) -> Result<Self> {
        let mut this = Self { process: None, directory: directory.to_owned(), at, peer, netns: netns.cloned() };
        make_private(&this.data())?;
        this.launch()?;
        Ok(this)
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Forgets all versions of all objects but the newest.
    pub fn compact(&self) -> Result<()> {
        let revision = self.ask("/v3/kv/range", &json!({"key": "AA=="}))?["header"]["revision"].clone();
        ensure!(revision.is_string(), "etcd told no revision");
        self.ask("/v3/kv/compaction", &json!({"revision": revision, "physical": true}))?;
        Ok(())
    }

    /// Copies the data while etcd stands still.
    pub fn back_up(&self) -> Result<Backup> {
        let to = tempfile::Builder::new().prefix("blt-backup-").tempdir()?;
        let process = self.process.as_ref().context("etcd does not run")?;
        process.freeze()?;
        let copied = copy(&self.data(), to.path());
        process.thaw()?;
        copied.map(|()| Backup(to))
    }

    /// Ends etcd, and starts it again over the older data.
    pub fn roll_back(&mut self, backup: &Backup) -> Result<()> {
        self.process = None;
        fs::remove_dir_all(self.data())?;
        make_private(&self.data())?;
        copy(backup.0.path(), &self.data())?;
        self.launch()
    }

    fn launch(&mut self) -> Result<()> {
        let (at, peer) = (self.at, self.peer);
        let mut command = Command::new(binary("etcd")?);
        command
            .arg("--name=tests")
            .arg(format!("--data-dir={}", self.data().display()))
            .arg(format!("--listen-client-urls=http://{at}"))
            .arg(format!("--advertise-client-urls=http://{at}"))
            .arg(format!("--listen-peer-urls=http://{peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
            .arg(format!("--initial-cluster=tests=http://{peer}"))
            // What a test stores need not survive a power cut.
            .arg("--unsafe-no-fsync")
            .arg("--log-level=warn");
        self.process = Some(Process::start(command, &self.directory.join("etcd.log"), self.netns.as_ref())?);
        Ok(())
    }

    /// Waits until it answers.
    pub fn settle(&self) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = self.ask("/v3/kv/range", &json!({"key": "AA=="})) {
            ensure!(start.elapsed() < START_LIMIT, "etcd does not answer: {error:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// A call of etcd's HTTP gateway.
    fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let ask = || -> Result<Value> {
            let mut stream = TcpStream::connect_timeout(&self.at, ASK_LIMIT)?;
            stream.set_read_timeout(Some(ASK_LIMIT))?;
            let body = body.to_string();
            let length = body.len();
            // HTTP/1.0: the answer is one piece, up to the end of the connection.
            write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
            ensure!(head.contains(" 200 "), "{path}: {answer}");
            Ok(serde_json::from_str(body)?)
        };
        match &self.netns {
            Some(netns) => netns.run(ask),
            None => ask(),
        }
    }

    fn data(&self) -> PathBuf {
        self.directory.join("etcd")
    }
}

fn make_private(directory: &Path) -> Result<()> {
    fs::create_dir(directory).with_context(|| directory.display().to_string())?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    Ok(())
}

/// Copies what is in a directory.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            make_private(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
