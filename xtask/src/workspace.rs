//! Where things lie: the checkout, the built programs, the cache of tools.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folders that the commands work in.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Root of the checkout.
    pub root: PathBuf,
    /// Links to the versions of the tools that this checkout asks for.
    pub tools: PathBuf,
    /// All versions of all tools, of every checkout: `${XDG_CACHE_HOME:-~/.cache}/ballast/tools`.
    pub cache: PathBuf,
}

impl Workspace {
    /// Finds the checkout that this xtask was built from, and the cache of the user who runs it.
    pub fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().context("xtask has no parent folder")?.to_path_buf();
        let cache = match env::var_os("XDG_CACHE_HOME") {
            Some(cache) if !cache.is_empty() => PathBuf::from(cache),
            _ => PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache"),
        };
        Ok(Self { tools: root.join("target/tools"), root, cache: cache.join("ballast/tools") })
    }

    /// The eBPF object that the agent embeds.
    pub fn object(&self) -> PathBuf {
        self.root.join("target/bpf/ballast.o")
    }

    /// The agent as built by `cargo xtask build`.
    pub fn agent(&self, release: bool) -> PathBuf {
        self.target().join(if release { "release" } else { "debug" }).join("ballast")
    }

    /// The demo that `cargo xtask run` starts.
    pub fn demo(&self) -> PathBuf {
        self.target().join("debug/ballast-demo")
    }

    /// Cargo's target folder of the main workspace.
    pub fn target(&self) -> PathBuf {
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from)
    }

    /// Where the output of long steps is kept.
    pub fn logs(&self) -> Result<PathBuf> {
        let logs = self.root.join("target/xtask");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(logs)
    }

    /// `PATH` with our tools first.
    pub fn path(&self) -> OsString {
        let mut path = self.tools.clone().into_os_string();
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        path
    }

    /// Whether a tool is there: built by setup, or installed by other means.
    pub fn has_tool(&self, name: &str) -> bool {
        self.tools.join(name).exists() || which(name).is_some()
    }

    /// The folder with kube-apiserver and etcd: `KUBEBUILDER_ASSETS` if the user set it, else our own.
    pub fn kube_assets(&self) -> PathBuf {
        env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map_or_else(|| self.tools.clone(), PathBuf::from)
    }
}

/// Whether we are root: the owner of our own process folder is the effective user.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// The first file of this name in the folders of `PATH`.
pub fn which(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| file.is_file())
}
