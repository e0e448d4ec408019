//! `ballast migrate` on what the real kube-proxy writes of itself.

use std::fs;
use std::process::Command;

use lb_tests::agent;
use lb_tests::cluster::binary;

/// kube-proxy writes all fields of its version, with their defaults: each has its place in the table, and none is left over.
#[test]
fn the_configuration_that_kube_proxy_writes_is_taken_over_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (theirs, ours) = (folder.path().join("kube-proxy.yaml"), folder.path().join("ballast.yaml"));
    let written = Command::new(binary("kube-proxy").unwrap()).arg("--write-config-to").arg(&theirs).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let ballast =
        |arguments: &[&std::ffi::OsStr]| Command::new(agent::binary().unwrap()).args(arguments).output().unwrap();
    let migrated = ballast(&["migrate".as_ref(), theirs.as_os_str()]);
    let text = String::from_utf8(migrated.stdout).unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert!(!text.contains("no field of kube-proxy"), "{text}");
    // An option or a value that the agent does not know, `doctor` names with the file.
    fs::write(&ours, &text).unwrap();
    let said = ballast(&["doctor".as_ref(), "--config".as_ref(), ours.as_os_str()]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("kernel") && !said.contains("is not valid"), "{said}");
}
