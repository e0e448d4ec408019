//! Writes into etcd itself, by its JSON gateway: objects in thousands, where the API server would take minutes.
//!
//! The API server reads what it did not write as it reads what an older version of itself wrote, and tells its watchers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use lb_tests::topology::NetNs;
use serde_json::{Value, json};

/// Objects in one transaction: etcd's limit is 128.
const TRANSACTION: usize = 128;
/// Connections that write single objects.
const WRITERS: usize = 4;
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is stored under a key.
pub type Entry = (String, Value);

/// An etcd, by address.
pub struct Store<'a> {
    pub netns: &'a NetNs,
    pub address: SocketAddr,
}

impl Store<'_> {
    /// Puts all of them, in transactions: quick, but the objects of one share a version. For objects that are new.
    pub fn load(&self, entries: impl Iterator<Item = Entry> + Send, stop: &AtomicBool) -> Result<usize> {
        self.netns.run(|| {
            let mut connection = Connection::open(self.address)?;
            let (mut count, mut batch) = (0, Vec::with_capacity(TRANSACTION));
            for entry in entries {
                count += 1;
                batch.push(entry);
                if batch.len() == TRANSACTION {
                    connection.put(&batch)?;
                    batch.clear();
                }
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            }
            if !batch.is_empty() {
                connection.put(&batch)?;
            }
            Ok(count)
        })
    }

    /// Puts them one by one, each a version of its own, as an API server would; some side by side.
    pub fn change(&self, count: usize, entry: impl Fn(usize) -> Entry + Sync, stop: &AtomicBool) -> Result<()> {
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let entry = &entry;
                    scope.spawn(move || {
                        self.netns.run(|| {
                            let mut connection = Connection::open(self.address)?;
                            for number in (writer..count).step_by(WRITERS) {
                                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                                connection.put(&[entry(number)])?;
                            }
                            Ok(())
                        })
                    })
                })
                .collect();
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect_timeout(&address, PATIENCE).with_context(|| format!("reaching etcd at {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address })
    }

    fn put(&mut self, entries: &[Entry]) -> Result<()> {
        let encode = |bytes: Vec<u8>| serde_json::to_value(ByteString(bytes));
        let puts = entries.iter().map(|(key, value)| {
            let (key, value) = (encode(key.clone().into_bytes())?, encode(serde_json::to_vec(value)?)?);
            Ok(json!({"requestPut": {"key": key, "value": value}}))
        });
        let body = json!({"success": puts.collect::<Result<Vec<_>>>()?}).to_string();
        let length = body.len();
        let head = format!("POST /v3/kv/txn HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n", self.address);
        self.stream.get_mut().write_all((head + &body).as_bytes())?;
        self.answer()
    }

    /// Reads one answer to its end, so that the connection can be used again.
    fn answer(&mut self) -> Result<()> {
        let status = self.line()?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse()?,
                Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
                Some(_) => {}
                None => break,
            }
        }
        let mut body = self.take(length)?;
        while chunked {
            let length = usize::from_str_radix(&self.line()?, 16)?;
            body.extend(self.take(length)?);
            self.line()?;
            chunked = length > 0;
        }
        if !status.contains(" 200 ") {
            bail!("etcd: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "etcd closed the connection");
        Ok(line.trim_end().to_owned())
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
