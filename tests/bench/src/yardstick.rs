//! The programs of `tests/yardstick`, which Ballast's are compared with. `cargo xtask bench` builds them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The built object.
pub fn object() -> Result<PathBuf> {
    let object = std::env::var_os("BALLAST_YARDSTICK").context("BALLAST_YARDSTICK names no object")?;
    Ok(object.into())
}
