//! A cpio archive as the kernel unpacks it into its first file system: the format "newc", not compressed.

use std::collections::BTreeSet;

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that grows.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// A file that may be executed. `path` begins with no slash; the folders above it are made.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.folders_above(path);
        self.entry(path, PROGRAM, (0, 0), contents);
    }

    /// An empty folder.
    pub fn folder(&mut self, path: &str) {
        self.folders_above(&format!("{path}/"));
    }

    /// A character device by its numbers.
    pub fn device(&mut self, path: &str, numbers: (u32, u32)) {
        self.folders_above(path);
        self.entry(path, CHARACTER_DEVICE, numbers, &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn folders_above(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            if self.folders.insert(path[..end].to_owned()) {
                self.entry(&path[..end], FOLDER, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let links = 1;
        let length = u32::try_from(contents.len()).expect("files of a guest are smaller than 4 GiB");
        let name = u32::try_from(path.len() + 1).expect("paths of a guest are short");
        // inode, mode, user, group, links, time, length, device of the file, device it is, length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, links, 0, length, 0, 0, device.0, device.1, name, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    /// Headers and contents begin at multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, mode and contents of each entry, read by the format's own rules.
    fn list(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], MAGIC.as_bytes());
            let field = |index: usize| {
                let start = at + 6 + index * 8;
                u32::from_str_radix(std::str::from_utf8(&bytes[start..start + 8]).unwrap(), 16).unwrap()
            };
            let (mode, length, name) = (field(1), field(6) as usize, field(11) as usize);
            let name_at = at + 110;
            let path = std::str::from_utf8(&bytes[name_at..name_at + name - 1]).unwrap().to_owned();
            let contents_at = (name_at + name).next_multiple_of(4);
            if path == TRAILER {
                return entries;
            }
            entries.push((path, mode, bytes[contents_at..contents_at + length].to_vec()));
            at = (contents_at + length).next_multiple_of(4);
        }
    }

    #[test]
    fn folders_come_before_what_lies_in_them_and_once() {
        let mut archive = Archive::default();
        archive.file("init", b"first");
        archive.file("usr/lib/one", b"1");
        archive.file("usr/lib/two", b"");
        archive.folder("usr/lib");
        archive.folder("run");
        archive.device("dev/console", (5, 1));
        let listed = list(&archive.finish());
        let paths: Vec<&str> = listed.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(paths, ["init", "usr", "usr/lib", "usr/lib/one", "usr/lib/two", "run", "dev", "dev/console"]);
        assert_eq!((listed[0].1, &listed[0].2[..]), (PROGRAM, &b"first"[..]));
        assert_eq!((listed[1].1, listed[7].1), (FOLDER, CHARACTER_DEVICE));
    }
}
