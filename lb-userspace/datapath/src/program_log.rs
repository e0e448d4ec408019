//! What the programs log by aya-log, handed to the agent's own log.

use std::io;

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::Log;
use tokio::io::{Interest, unix::AsyncFd};

use super::DatapathError;

/// Reader of the programs' log; made only if their level is not off.
#[derive(Debug)]
pub struct ProgramLog(Reader);

struct Reader(EbpfLogger<&'static dyn Log>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl ProgramLog {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, DatapathError> {
        let logger = EbpfLogger::init(ebpf);
        let logger = logger.map_err(|error| DatapathError::BadObject { reason: format!("its log: {error}") })?;
        Ok(Self(Reader(logger)))
    }

    /// Hands records to the `log` crate's logger until the task is dropped. Needs a tokio runtime.
    pub async fn run(self) -> io::Result<()> {
        // SAFETY: the logger owns the ring's descriptor, and is neither taken out nor replaced while it is registered.
        let mut logger =
            unsafe { AsyncFd::register_with_interest(self.0.0, Interest::READABLE) }.map_err(io::Error::from)?;
        loop {
            let mut ready = logger.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}
