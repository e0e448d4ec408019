//! `cargo xtask image`: the static binary as an image in one file, without a container daemon.

mod archive;
pub mod binary;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use duct::cmd;

use self::archive::Image;
use crate::compile::build_programs;
use crate::process::say;
use crate::setup::{Level, setup};
use crate::workspace::Workspace;

/// How the image is made.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// Where the archive goes [default: target/image/ballast.oci.tar]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name that a container runtime knows it by after an import [default: docker.io/library/ballast:VERSION]
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
}

/// Builds programs and agent, packs the agent, and runs what was packed.
pub fn run(workspace: &Workspace, args: &ImageArgs) -> Result<()> {
    let toolchain = setup(workspace, Level::Build)?;
    build_programs(
        workspace,
        toolchain,
        &workspace.root.join("lb-ebpf"),
        &workspace.target().join("ebpf"),
        &workspace.object(),
    )?;
    let path = build_static(workspace)?;
    let program = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        binary::is_static(&program)?,
        "{} asks for a dynamic loader, and the image has none: expected a static binary",
        path.display()
    );
    let version = env!("CARGO_PKG_VERSION");
    let image = Image {
        program: &program,
        architecture: architecture()?,
        version,
        revision: &revision(&workspace.root),
        name: &args.name.clone().unwrap_or_else(|| format!("docker.io/library/ballast:{version}")),
    };
    let packed = archive::pack(&image)?;
    let output = args.output.clone().unwrap_or_else(|| workspace.root.join("target/image/ballast.oci.tar"));
    let folder = output.parent().context("the archive has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&output, &packed.archive).with_context(|| format!("cannot write {}", output.display()))?;
    try_out(&packed.layer, folder)?;
    say(&format!("image: {} ({} bytes)", output.display(), packed.archive.len()));
    say(&format!("name: {}, digest: {}", image.name, packed.digest));
    Ok(())
}

/// The agent as it is released: static, with optimisation. The programs must have been built.
pub fn build_static(workspace: &Workspace) -> Result<PathBuf> {
    binary::build(workspace, binary::Profile::Release)
}

/// Runs the packed program once: an image that cannot start is none.
fn try_out(layer: &[u8], folder: &Path) -> Result<()> {
    let program = archive::program_of(layer)?;
    let path = folder.join("ballast.try");
    fs::write(&path, program).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("cannot make it executable")?;
    // Nothing of this machine's environment reaches it, as in a container.
    let ran = cmd!(&path, "version").full_env([("PATH", "/")]).stderr_to_stdout().read();
    fs::remove_file(&path).ok();
    let text = ran.context("the packed program does not run: `ballast version` failed")?;
    say(&format!("the packed program runs: {}", text.lines().next().unwrap_or_default()));
    Ok(())
}

/// The architecture by the name that images use.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("no image is made for {other}: expected x86_64 or aarch64"),
    }
}

/// The commit, with `-dirty` if the tree differs from it; `unknown` outside a checkout.
fn revision(root: &Path) -> String {
    let git = |arguments: &[&str]| cmd("git", arguments).dir(root).stderr_null().read().ok();
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}-dirty"),
        _ => "unknown".to_owned(),
    }
}
