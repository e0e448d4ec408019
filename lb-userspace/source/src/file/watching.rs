//! Changes in a folder, by inotify and without a thread: a start with too little memory or too few descriptors gets an error.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::{Interest, unix::AsyncFd};

/// So many bytes of events are read at a time; a reader of the folder looks at all of it whatever changed.
const READ: usize = 16 << 10;

/// A folder that is watched, but not the folders in it.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Needs a tokio runtime.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        // Not of opening and reading: the agent's own reading would cause the next one.
        let of_itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ATTRIB;
        let of_files = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MODIFY | WatchFlags::MOVE;
        inotify::add_watch(&events, folder, of_itself | of_files)?;
        // SAFETY: the descriptor is owned, and is neither taken out nor replaced while it is registered.
        let events = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) }.map_err(io::Error::from)?;
        Ok(Self(events))
    }

    /// Waits until something changed. One call takes many events; those that are left end the next call at once.
    pub async fn changed(&self) -> io::Result<()> {
        let mut read = vec![0; READ];
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|events| Ok(rustix::io::read(events.as_fd(), &mut read)?)) {
                Ok(taken) => return taken.map(|_| ()),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    /// The kernel queues an event before the call that caused it returns.
    async fn is_told(watch: &Watch) -> bool {
        timeout(Duration::ZERO, watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn changes_are_told_and_reading_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("web.yaml");
        let watch = Watch::of(dir.path()).unwrap();
        fs::write(&file, "a").unwrap();
        watch.changed().await.unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"a");
        assert!(!is_told(&watch).await, "reading is no change");
        fs::rename(&file, dir.path().join("api.yaml")).unwrap();
        watch.changed().await.unwrap();
        fs::remove_file(dir.path().join("api.yaml")).unwrap();
        watch.changed().await.unwrap();
        assert_eq!(Watch::of(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
