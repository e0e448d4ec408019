//! The networks of the tests vanish, also those of a run that died.

use std::process::{Command, Stdio};

use anyhow::Result;
use lb_tests::topology::{PREFIX, RUN_ROOT, Topology, sweep};

#[test]
fn nothing_is_left() -> Result<()> {
    let topology = Topology::new("gone")?;
    let name = topology.name().to_owned();
    let node = topology.node()?;
    let (bpffs, cgroup) = (node.bpffs().to_owned(), node.cgroup().to_owned());
    let pod = node.pod("pod")?;
    assert!(cgroup.exists() && bpffs.exists());
    drop((pod, node, topology));
    assert!(!bpffs.exists() && !cgroup.exists());
    let left: Vec<_> = std::fs::read_dir("/run/netns")?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Set for the run of this binary that is to die with everything in place.
const DIE: &str = "BALLAST_TEST_DIE";

#[test]
fn what_a_killed_run_left_is_swept() -> Result<()> {
    if std::env::var_os(DIE).is_some() {
        let topology = Topology::new("dies")?;
        let node = topology.node()?;
        let _pod = node.pod("pod")?;
        std::process::abort();
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "topology::what_a_killed_run_left_is_swept"])
        .env(DIE, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mark = format!("{PREFIX}{}-", child.id());
    assert!(!child.wait()?.success());
    let left = || -> Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in ["/run/netns", RUN_ROOT] {
            names.extend(std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()));
        }
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.extend(std::fs::read_to_string("/proc/self/mounts")?.lines().map(str::to_owned));
        names.retain(|name| name.contains(&mark));
        Ok(names)
    };
    assert!(left()?.len() >= 5, "wire, node and pod, a folder and a bpffs: {:?}", left()?);
    sweep()?;
    assert_eq!(left()?, [""; 0]);
    Ok(())
}
