//! What on this node keeps Ballast from working, or from working well: looked at before an agent is started, or beside one. Changes
//! nothing.

mod finding;
mod links;
mod offload;
mod proxies;

use std::{fs, path::Path};

use caps::Capability;

pub use finding::{Finding, Level, Wishes};
pub use proxies::kube_proxy_runs;

use super::{
    DatapathError, Feature, beside, bpffs, cgroup, features,
    pins::Pins,
    settings::{PortRange, SocketLb, TcAttach},
    source_ports,
};

/// Looks at everything, in this process's network namespace.
pub fn examine(wishes: &Wishes) -> Vec<Finding> {
    let privileges = privileges();
    let may_load = privileges.level == Level::Ok;
    let mut findings = vec![privileges];
    findings.extend(raw_sockets(features::has(Capability::CAP_NET_RAW)));
    findings.extend(kernel(&features::kernel_release(), may_load));
    // Without the privileges the kernel makes no map, whatever the limit.
    findings.extend(may_load.then(locked_memory));
    findings.extend([preemption(), btf(), jit()]);
    findings.push(mechanism(wishes.tc_attach));
    findings.push(bpf_file_system(&wishes.bpffs));
    findings.push(control_groups(wishes));
    findings.push(node_ports(source_ports::Local::read().as_ref()));
    findings.extend(links::examine(wishes));
    findings.extend(proxies::examine(&wishes.bpffs));
    findings
}

fn judged(check: &'static str, fine: impl Into<String>, result: Result<(), DatapathError>) -> Finding {
    match result {
        Ok(()) => Finding::ok(check, fine),
        Err(error) => Finding::of(check, Level::Fail, &error),
    }
}

fn privileges() -> Finding {
    judged("privileges", "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are there", features::check_privileges())
}

/// The agent starts without this one.
fn raw_sockets(is_granted: bool) -> Option<Finding> {
    let found = "no CAP_NET_RAW: a connection ends at its next segment, not at the eviction deadline of its backend";
    (!is_granted).then(|| Finding::bad("privileges", Level::Warn, found, "grant it to the container, or run as root"))
}

/// The release, and a finding for each feature that the kernel lacks. Asking takes the privileges of the agent.
fn kernel(release: &str, may_load: bool) -> Vec<Finding> {
    if !may_load {
        return vec![Finding::ok("kernel", format!("{release}, whose features only root can look at"))];
    }
    lacking(release, &Feature::missing())
}

fn lacking(release: &str, missing: &[Feature]) -> Vec<Finding> {
    let finding = |feature: &Feature| {
        let (found, remedy) = (format!("{release} has {feature}"), format!("boot Linux {} or newer", feature.since()));
        Finding::bad("kernel", Level::Warn, found, remedy)
    };
    if missing.is_empty() { vec![Finding::ok("kernel", release)] } else { missing.iter().map(finding).collect() }
}

fn locked_memory() -> Finding {
    judged("locked-memory", "maps do not count as locked memory, or no limit is on it", features::check_memory_limit())
}

fn preemption() -> Finding {
    judged("preemption", "no packet interrupts another one on its CPU (no PREEMPT_RT)", features::check_preemption())
}

fn btf() -> Finding {
    judged("btf", "the kernel describes its own types", features::check_btf())
}

fn jit() -> Finding {
    match fs::read_to_string("/proc/sys/net/core/bpf_jit_enable") {
        Ok(text) if text.trim() == "0" => Finding::bad(
            "jit",
            Level::Warn,
            "programs are interpreted: each packet takes several times as long",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Finding::ok("jit", "programs are compiled"),
        // Kernels that always compile have no such switch for everybody to see.
        Err(_) => Finding::ok("jit", "not readable"),
    }
}

fn mechanism(asked: TcAttach) -> Finding {
    match features::tc_mechanism(asked) {
        Ok(features::TcMechanism::Tcx) => Finding::ok("tc", "attached by TCX"),
        Ok(features::TcMechanism::Clsact) => Finding::ok("tc", "attached by clsact filters"),
        Err(error) => Finding::bad("tc", Level::Fail, error.to_string(), "--tc-attach auto"),
    }
}

fn bpf_file_system(dir: &Path) -> Finding {
    if let Err(error) = beside::check(&Pins::under(dir)) {
        return Finding::of("bpffs", Level::Fail, &error);
    }
    match bpffs::judge(dir) {
        Ok(true) => Finding::ok("bpffs", format!("{} is one", dir.display())),
        Ok(false) => Finding::ok("bpffs", format!("the agent mounts one on {}", dir.display())),
        Err(error) => Finding::of("bpffs", Level::Fail, &error),
    }
}

fn control_groups(wishes: &Wishes) -> Finding {
    if wishes.socket_lb == SocketLb::Off {
        return Finding::ok("cgroup", "not needed with --socket-lb off");
    }
    match cgroup::open(wishes.cgroup_root.as_deref()) {
        Ok(root) => match root.outside() {
            None => Finding::ok("cgroup", format!("version 2 at {}", root.path.display())),
            Some(warning) => {
                let (what, remedy) = warning.split_once("; ").unwrap_or((&warning, ""));
                Finding::bad("cgroup", Level::Warn, what.to_owned(), remedy.to_owned())
            }
        },
        Err(error) => Finding::of("cgroup", Level::Fail, &error),
    }
}

/// Kubernetes' default for `--service-node-port-range`.
const NODE_PORTS: PortRange = PortRange { first: 30_000, last: 32_767 };

fn node_ports(local: Option<&source_ports::Local>) -> Finding {
    match local.and_then(|local| local.taken(NODE_PORTS)) {
        None => Finding::ok("node-ports", format!("no socket of the node takes one of {NODE_PORTS} by itself")),
        Some(taken) => Finding::bad(
            "node-ports",
            Level::Warn,
            format!("sockets of the node may take {taken} as their own ports, which are node ports ({NODE_PORTS})"),
            format!("sysctl net.ipv4.ip_local_reserved_ports={NODE_PORTS}, or another net.ipv4.ip_local_port_range"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_is_named_with_the_loss_and_the_remedy() {
        assert_eq!(lacking("6.12.9", &[]), [Finding::ok("kernel", "6.12.9")]);
        let findings = lacking("5.10.0-32-amd64", &[Feature::SetRetval, Feature::CheckMtu]);
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].level, Level::Warn);
        assert!(findings[0].found.contains("5.10.0-32-amd64") && findings[0].found.contains("EPERM"), "{findings:?}");
        assert_eq!(findings[1].remedy.as_deref(), Some("boot Linux 5.12 or newer"));
    }

    #[test]
    fn a_missing_right_to_raw_sockets_is_a_warning() {
        assert_eq!(raw_sockets(true), None);
        let finding = raw_sockets(false).expect("a finding");
        assert_eq!(finding.level, Level::Warn);
        assert!(finding.found.contains("CAP_NET_RAW") && finding.remedy.is_some(), "{finding:?}");
    }

    #[test]
    fn node_ports_that_sockets_may_take_are_named_with_the_remedy() {
        let local = |range: &str| source_ports::Local::parse(range, "").expect("as the kernel writes it");
        assert_eq!(node_ports(Some(&local("32768 60999"))).level, Level::Ok);
        let finding = node_ports(Some(&local("1024 65535")));
        assert_eq!(finding.level, Level::Warn);
        let remedy = finding.remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains("ip_local_reserved_ports="), "{finding:?}");
    }
}
