//! Whether connections of IPVS end with their virtual service.
//!
//! With `net.ipv4.vs.expire_nodest_conn` at 1, as kube-proxy sets it, the kernel ends them with the service (since Linux 5.9: commit
//! 04231e52d355). Conntrack forgets each one that ends, also when NAT translates it by then.

use std::{fs, io};

/// The setting, of a network namespace.
pub const SETTING: &str = "net.ipv4.vs.expire_nodest_conn";

/// Sets it to 0 in the namespace of this thread. A kernel that has not loaded IPVS has no such setting.
pub fn switch_off() -> io::Result<()> {
    let file = format!("/proc/sys/{}", SETTING.replace('.', "/"));
    match fs::read_to_string(&file) {
        Ok(value) if value.trim() == "0" => Ok(()),
        Ok(_) => fs::write(&file, "0"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
