//! Where the object with the programs is.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The object with the programs: `BALLAST_TEST_OBJECT`, `BALLAST_EBPF_OBJECT`, else where `cargo xtask build` leaves it.
pub fn object() -> Result<PathBuf> {
    let path = ["BALLAST_TEST_OBJECT", "BALLAST_EBPF_OBJECT"].into_iter().find_map(std::env::var_os);
    let path = path.map_or_else(|| workspace().join("target/bpf/ballast.o"), PathBuf::from);
    if !path.exists() {
        bail!("no programs at {}: run `cargo xtask build`, or set BALLAST_EBPF_OBJECT", path.display());
    }
    Ok(path)
}

/// The workspace's folder.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace")
}
