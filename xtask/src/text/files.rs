//! The files that the lints of the text read: pages (`.md`) and Rust sources of the checkout.

use std::path::Path;

/// A page or a source file, by its path from the root of the checkout.
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    pub fn is_page(&self) -> bool {
        ends_in(&self.path, "md")
    }
}

pub fn ends_in(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|own| own == extension)
}

/// All pages and sources below `root`. Folders that the build writes, and hidden ones, are left out.
pub fn read(root: &Path) -> Vec<File> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the checkout is readable") {
            let path = entry.expect("the checkout is readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("file names are in UTF-8");
            if path.is_dir() && !path.is_symlink() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if ["md", "rs"].iter().any(|end| ends_in(name, end)) {
                let own =
                    path.strip_prefix(root).expect("it lies below the root").to_str().expect("file names are in UTF-8");
                let text = std::fs::read_to_string(&path).expect("pages and sources are in UTF-8");
                files.push(File { path: own.to_owned(), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}
