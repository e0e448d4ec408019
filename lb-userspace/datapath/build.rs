//! Embeds the eBPF object: `BALLAST_EBPF_OBJECT`, else `target/bpf/ballast.o` of the workspace, else nothing.
//!
//! Nothing is embedded as an empty object, so that plain `cargo build` and `cargo test` need no eBPF tools; the agent then
//! says that it was built without programs.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BALLAST_EBPF_OBJECT");

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("ballast.o");
    let object = if let Some(path) = env::var_os("BALLAST_EBPF_OBJECT") {
        let path = PathBuf::from(path);
        println!("cargo::rerun-if-changed={}", path.display());
        fs::read(&path).map_err(|error| format!("BALLAST_EBPF_OBJECT={}: {error}", path.display()))?
    } else {
        let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
        let folder = manifest.ancestors().nth(2).ok_or("the package lies in the workspace")?.join("target/bpf");
        // The folder must exist to be watched: cargo rebuilds each time when a watched path is missing.
        fs::create_dir_all(&folder)?;
        println!("cargo::rerun-if-changed={}", folder.display());
        fs::read(folder.join("ballast.o")).unwrap_or_default()
    };
    fs::write(out, object)?;
    Ok(())
}
