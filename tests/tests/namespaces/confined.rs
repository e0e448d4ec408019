//! The rights that the rungs `... (confined)` give the agent are those of the DaemonSet, and no others. Needs root.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use caps::Capability;
use serde_json::Value;

/// Runs a script of the shell with the rights of the agent, with `folder` as its run directory.
fn confined(folder: &Path, script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast-confined"));
    command.args(["/bin/sh", "-c", script, "sh"]).arg(format!("--run-dir={}", folder.display()));
    command.output().expect("it was built with this test")
}

/// The container of the agent in the DaemonSet.
fn container() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kustomize/base/daemonset.yaml");
    let text = std::fs::read_to_string(path).expect("the manifest is in the checkout");
    let manifest: Value = serde_saphyr::from_str(&text).expect("YAML");
    manifest["spec"]["template"]["spec"]["containers"][0].clone()
}

#[test]
fn capabilities_are_those_of_the_daemon_set() {
    let context = &container()["securityContext"];
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    let added = context["capabilities"]["add"].as_array().expect("a list");
    let bits = added.iter().map(|name| {
        let name = format!("CAP_{}", name.as_str().expect("a name"));
        1_u64 << name.parse::<Capability>().expect("a capability").index()
    });
    let mask = format!("{:016x}", bits.sum::<u64>());
    let folder = tempfile::tempdir().expect("a folder");
    let output = confined(folder.path(), "cat /proc/self/status");
    let status = String::from_utf8(output.stdout).expect("text");
    let fields: BTreeMap<&str, &str> = status.lines().filter_map(|line| line.split_once(":\t")).collect();
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(fields[set], mask, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(fields[set], format!("{:016x}", 0), "{set}");
    }
    assert_eq!((fields["NoNewPrivs"], fields["Seccomp"]), ("1", "2"), "{status}");
}

#[test]
fn nothing_is_written_but_in_the_mounted_folders() {
    let context = &container()["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    let (own, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let other = other.path().display();
    let script = format!("echo one > {}/file && echo two > {other}/file", own.path().display());
    let output = confined(own.path(), &script);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Read-only file system"), "{said}");
    assert_eq!(std::fs::read_to_string(own.path().join("file")).expect("was written"), "one\n");
    for path in ["/proc/sys/net/ipv4/ip_forward", "/sys/kernel/mm/ksm/run", "/etc/hostname"] {
        let output = confined(own.path(), &format!(": >> {path}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("Read-only file system"), "{path}: {said}");
    }
}

#[test]
fn mounts_and_namespaces_are_refused() {
    assert_eq!(container()["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let folder = tempfile::tempdir().expect("a folder");
    for script in ["mount -t tmpfs none /mnt", "unshare --user true", "unshare --net true"] {
        let output = confined(folder.path(), script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // A user namespace needs no capability: only the filter refuses it.
        let refused = said.contains("permission denied") || said.contains("Operation not permitted");
        assert!(!output.status.success() && refused, "{script}: {said}");
    }
}
