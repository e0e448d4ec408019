//! Reads files in threads of their own. A file that hangs (a mount without its server) or is no regular file (a FIFO, a device) fails alone, and is
//! named.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::SourceError;

/// How long all files together may take in one reading. One that takes longer is read again in the next.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long each is waited for once that is over.
const LEAST: Duration = Duration::from_millis(20);

/// The text of every file, by path, or why it cannot be read.
pub(super) type Texts = BTreeMap<PathBuf, Result<String, String>>;

/// So many files may hang at a time; what comes beyond is not tried.
const HANGING_MAX: usize = 64;

type Read<T> = JoinHandle<io::Result<T>>;

/// Readings under way.
#[derive(Debug, Default)]
pub(super) struct Reader {
    listing: Option<Read<Vec<PathBuf>>>,
    files: BTreeMap<PathBuf, Read<String>>,
}

impl Reader {
    /// Reads the file `path`, or all manifests of the folder.
    pub async fn read(&mut self, path: &Path) -> Result<Texts, SourceError> {
        let deadline = Instant::now() + PATIENCE;
        let whole = path.to_owned();
        let listed = wait(&mut self.listing, move || list(&whole), deadline).await;
        let paths = listed.map_err(|source| SourceError::Unreadable { path: path.display().to_string(), source })?;
        // A reading that hangs goes on until its file is there again: no second thread hangs on it.
        self.files.retain(|file, _| paths.contains(file));
        let mut texts = Texts::new();
        for file in paths {
            let mut under_way = self.files.remove(&file);
            let wanted = file.clone();
            let deadline = deadline.max(Instant::now() + LEAST);
            let text = if self.files.len() < HANGING_MAX {
                wait(&mut under_way, move || read_regular(&wanted), deadline).await
            } else {
                Err(io::Error::new(io::ErrorKind::TimedOut, "too many others do not answer"))
            };
            if let Some(under_way) = under_way {
                self.files.insert(file.clone(), under_way);
            }
            let text =
                text.map_err(|source| SourceError::Unreadable { path: file.display().to_string(), source }.to_string());
            texts.insert(file, text);
        }
        Ok(texts)
    }
}

/// The answer of a thread: of the one under way, else of a new one. What is not there in time stays under way.
async fn wait<T: Send + 'static>(
    under_way: &mut Option<Read<T>>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
    deadline: Instant,
) -> io::Result<T> {
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
    // What answered late is old news: it is read anew.
    if let Some(before) = under_way.take()
        && !before.is_finished()
    {
        *under_way = Some(before);
        return late();
    }
    let mut read = tokio::task::spawn_blocking(work);
    match timeout_at(deadline, &mut read).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => {
            *under_way = Some(read);
            late()
        }
    }
}

fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // As the folder itself has it: a look at the file might hang.
        if is_manifest(&entry.path()) && !entry.file_type()?.is_dir() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let known = path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
    known && !hidden
}

fn read_regular(path: &Path) -> io::Result<String> {
    // A FIFO without a writer would be waited for.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reading_that_hangs_is_waited_for_once_and_read_anew_when_it_answers() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let hangs = move || released.recv().map(|()| "old").map_err(io::Error::other);
        let soon = || Instant::now() + Duration::from_millis(10);
        let mut under_way = None;
        assert_eq!(wait(&mut under_way, hangs, soon()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let again = || -> io::Result<&str> { panic!("no second thread") };
        assert_eq!(wait(&mut under_way, again, soon()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        release.send(()).unwrap();
        let late = Instant::now() + Duration::from_secs(30);
        let answered = loop {
            match wait(&mut under_way, || Ok("new"), late).await {
                Err(_) => tokio::task::yield_now().await,
                Ok(answer) => break answer,
            }
        };
        assert_eq!(answered, "new");
    }
}
