//! The maps of a test, pinned for readers that open maps by their pins.

use std::path::Path;

use anyhow::{Context, Result};
use aya::Ebpf;

/// Makes the folder in a bpf file system, and pins every map there under its name.
pub(super) fn all(ebpf: &Ebpf, folder: &Path) -> Result<()> {
    std::fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
    // Maps of constants and variables have names with dots, which no pin may have.
    for (name, map) in ebpf.maps().filter(|(name, _)| !name.contains('.')) {
        map.pin(folder.join(name)).with_context(|| format!("pinning {name}"))?;
    }
    Ok(())
}
