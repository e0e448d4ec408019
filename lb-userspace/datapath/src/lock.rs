//! One agent per node: per run folder, per pin folder, and per network namespace.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::MetadataExt as _,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{DatapathError, pins::Pins};

/// Abstract socket names belong to the network namespace, and vanish with their process.
const NAMESPACE_LOCK: &[u8] = b"ballast-agent";
const LOCK_FILE: &str = "agent.lock";

/// Held as long as the agent lives; the kernel releases all of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct AgentLock {
    _run_dir: Option<Flock<File>>,
    _pins: Option<Flock<File>>,
    _namespace: UnixListener,
}

impl AgentLock {
    /// Takes all three, or names who holds one. Of the folders, those are locked that are given; `pins` must exist.
    pub fn take(run_dir: Option<&Path>, pins: Option<&Path>) -> Result<Self, DatapathError> {
        Ok(Self {
            _run_dir: run_dir.map(lock_run_dir).transpose()?.flatten(),
            _pins: pins.map(lock_pins).transpose()?,
            _namespace: lock_namespace()?,
        })
    }
}

/// Names an agent that already runs in this network namespace: the better error where something of it is in the way. It takes
/// nothing; [`AgentLock::take`] is what keeps a second agent out.
pub fn check_alone() -> Result<(), DatapathError> {
    match namespace_holder() {
        Some(holder) => Err(namespace_locked(holder)),
        None => Ok(()),
    }
}

/// Where an agent runs that has the pins under `bpffs` or is in this network namespace, whatever its run folder; `None`: none does, as
/// far as this process may see. It takes nothing.
pub fn running_agent(bpffs: &Path) -> Option<String> {
    let pins = Pins::under(bpffs);
    let of_namespace = namespace_holder().map(|holder| format!("in this network namespace{holder}"));
    of_namespace.or_else(|| {
        let pid = lock_holder(&fs::metadata(pins.root()).ok()?)?;
        Some(format!("on the pins in {} (pid {pid})", pins.root().display()))
    })
}

/// Path of the lock file, which holds the agent's process id.
pub(super) fn lock_file(run_dir: &Path) -> PathBuf {
    run_dir.join(LOCK_FILE)
}

/// `None`: the folder cannot be used. The other locks keep a second agent out, and a full or broken run folder none from starting.
fn lock_run_dir(run_dir: &Path) -> Result<Option<Flock<File>>, DatapathError> {
    let path = lock_file(run_dir);
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = match fs::create_dir_all(run_dir).and_then(|()| open()) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!("{} is not locked: {error}; make room there, or choose another --run-dir", path.display());
            return Ok(None);
        }
    };
    let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| DatapathError::Locked { what: path.display().to_string(), holder: holder_in(run_dir) })?;
    // It only informs: a full file system must not keep an agent from starting.
    let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::warn!("{} does not name this agent's process: {error}", path.display());
    }
    Ok(Some(lock))
}

fn lock_pins(pins: &Path) -> Result<Flock<File>, DatapathError> {
    let folder = File::open(pins).map_err(DatapathError::file("open", pins))?;
    let metadata = folder.metadata().map_err(DatapathError::file("stat", pins))?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|_| {
        let holder = lock_holder(&metadata).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        DatapathError::Locked { what: pins.display().to_string(), holder }
    })
}

/// The process that holds a lock on a folder, as far as this process may see it.
fn lock_holder(folder: &Metadata) -> Option<i32> {
    let (major, minor) = (rustix::fs::major(folder.dev()), rustix::fs::minor(folder.dev()));
    let is_it = |lock: &procfs::Lock| (lock.devmaj, lock.devmin, lock.inode) == (major, minor, folder.ino());
    procfs::locks().unwrap_or_default().into_iter().find(is_it).and_then(|lock| lock.pid)
}

fn lock_namespace() -> Result<UnixListener, DatapathError> {
    let action = "lock the network namespace";
    let address = SocketAddr::from_abstract_name(NAMESPACE_LOCK).map_err(DatapathError::kernel(action))?;
    UnixListener::bind_addr(&address).map_err(|error| {
        if error.kind() != ErrorKind::AddrInUse {
            return DatapathError::kernel(action)(error);
        }
        namespace_locked(namespace_holder().unwrap_or_default())
    })
}

fn namespace_locked(holder: String) -> DatapathError {
    DatapathError::Locked { what: "this network namespace".to_owned(), holder }
}

/// Who holds the namespace's lock, as an error says it; nothing of somebody whose queue of callers is full. `None`: nobody.
fn namespace_holder() -> Option<String> {
    // Nobody accepts on the lock: a call that waited for room in the queue would wait for ever.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(NAMESPACE_LOCK).ok()?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {
            let peer = rustix::net::sockopt::socket_peercred(&socket);
            Some(peer.map(|peer| format!(" (pid {})", peer.pid)).unwrap_or_default())
        }
        Err(Errno::AGAIN) => Some(String::new()),
        Err(_) => None,
    }
}

fn holder_in(run_dir: &Path) -> String {
    let mut text = String::new();
    let read = File::open(lock_file(run_dir)).and_then(|file| file.take(32).read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), pid) if !pid.is_empty() => format!(" (pid {pid})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_names_the_first() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let first = lock_run_dir(dir.path()).expect("free");
        assert!(first.is_some());
        let error = lock_run_dir(dir.path()).expect_err("held").to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        lock_run_dir(dir.path()).expect("free again");
    }

    #[test]
    fn a_run_folder_that_cannot_be_used_keeps_no_agent_from_starting() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("writable");
        assert!(lock_run_dir(&file.join("below")).expect("no error").is_none(), "no folder can be made there");
        // The pid only informs: /dev/full takes no byte.
        let full = dir.path().join("full");
        fs::create_dir(&full).expect("writable");
        std::os::unix::fs::symlink("/dev/full", full.join(LOCK_FILE)).expect("writable");
        lock_run_dir(&full).expect("the lock is taken all the same");
    }

    #[test]
    fn a_look_at_the_lock_names_its_holder_and_never_waits() {
        let Ok(held) = lock_namespace() else { return }; // An agent runs on this machine: it shows the same.
        for _ in 0..5_000 {
            // More callers than any queue has room for.
            assert!(check_alone().is_err());
        }
        drop(held);
        check_alone().expect("free again");
    }

    #[test]
    fn a_pin_folder_is_locked_whatever_the_run_folder() {
        let pins = tempfile::tempdir().expect("a temporary folder");
        let first = lock_pins(pins.path()).expect("free");
        let error = lock_pins(pins.path()).expect_err("held").to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        lock_pins(pins.path()).expect("free again");
    }
}
