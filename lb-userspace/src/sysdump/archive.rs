//! A gzipped tar.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

pub(super) struct Archive<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    folder: String,
    made_s: u64,
}

impl<W: Write> Archive<W> {
    /// All files lie in `folder`. `made_s`: seconds since 1970.
    pub fn new(folder: &str, made_s: u64, to: W) -> Self {
        let tar = tar::Builder::new(GzEncoder::new(to, Compression::default()));
        Self { tar, folder: folder.to_owned(), made_s }
    }

    pub fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.made_s);
        self.tar.append_data(&mut header, format!("{}/{name}", self.folder), bytes)
    }

    pub fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.flush()
    }
}
