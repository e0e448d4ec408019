//! What the kernel says of the agent's own process.

use std::sync::OnceLock;

use procfs::process::{LimitValue, Process};
use procfs::{CurrentSI as _, KernelStats, ProcResult};

/// A process at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessReading {
    /// Time on a CPU, in user and kernel mode.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub open_fds: u64,
    /// The soft limit; `None`: there is none.
    pub max_fds: Option<u64>,
    /// When it started, in seconds since the epoch.
    pub start_seconds: f64,
}

impl ProcessReading {
    /// Of this process, now. It costs two small files and one folder of `/proc`.
    ///
    /// # Errors
    ///
    /// Where `/proc` is not mounted.
    pub fn take() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let max_fds = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: seconds(stat.utime + stat.stime),
            resident_bytes: stat.rss * procfs::page_size(),
            virtual_bytes: stat.vsize,
            open_fds: process.fd_count()? as u64,
            max_fds,
            start_seconds: start_seconds(stat.starttime)?,
        })
    }
}

/// Read once: the kernel computes the time of its boot anew whenever the wall clock jumps, and `/proc/stat` is long on large machines.
fn start_seconds(ticks_after_boot: u64) -> ProcResult<f64> {
    static START: OnceLock<f64> = OnceLock::new();
    if let Some(start) = START.get() {
        return Ok(*start);
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are far below 2^53")]
    let boot = KernelStats::current()?.btime as f64;
    Ok(*START.get_or_init(|| boot + seconds(ticks_after_boot)))
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 ticks, millions of years")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::agent::clock;

    #[test]
    fn this_process_is_read() {
        let before = ProcessReading::take().expect("/proc is mounted");
        let now = clock::wall().as_duration().as_secs_f64();
        assert!(now - before.start_seconds < 86_400.0 && before.start_seconds < now + 1.0, "{before:?} at {now}");
        assert!((1 << 20..1 << 40).contains(&before.resident_bytes), "{before:?}");
        assert!(before.virtual_bytes >= before.resident_bytes, "{before:?}");
        assert!(before.max_fds.is_none_or(|limit| limit >= before.open_fds), "{before:?}");
        // Other tests open and close files meanwhile, but not so many.
        let files: Vec<_> = (0..200).map(|_| File::open("/proc/self/stat").expect("readable")).collect();
        let after = ProcessReading::take().expect("/proc is mounted");
        assert!(after.open_fds > before.open_fds + 100, "{before:?} {after:?}");
        assert!((after.start_seconds - before.start_seconds).abs() < f64::EPSILON && !files.is_empty());
        let mut spun = 0_u64;
        while ProcessReading::take().expect("/proc is mounted").cpu_seconds <= after.cpu_seconds {
            spun += 1;
            assert!(spun < 1_000_000, "no time passes on the CPU");
        }
    }
}
