//! The files of deploy/ agree with each other and with the agent. Needs no root.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Container;
use lb_userspace::config::{CgroupRoot, Options, Settings, Source};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

fn settings(path: &str) -> Settings {
    Options::read(&deploy(path)).expect("valid options").settle(Some("node")).expect("complete")
}

fn container() -> Container {
    let text = std::fs::read_to_string(deploy("kustomize/base/daemonset.yaml")).expect("it is there");
    let daemon_set: DaemonSet = serde_saphyr::from_str(&text).expect("a DaemonSet");
    let pod = daemon_set.spec.template.spec.expect("a pod");
    pod.containers.into_iter().next().expect("a container")
}

#[test]
fn the_configurations_are_the_agents() {
    for path in ["kustomize/base/agent.yaml", "kustomize/example/agent.yaml"] {
        let settings = settings(path);
        assert_eq!(settings.source, Source::Kube, "{path}");
        assert!(settings.api_server.is_some(), "{path}: the agent must not reach the API through itself");
    }
}

#[test]
fn every_folder_of_the_agent_is_mounted() {
    let settings = settings("kustomize/base/agent.yaml");
    let container = container();
    let mounts: Vec<_> = container.volume_mounts.into_iter().flatten().collect();
    let writable = |path: &Path| mounts.iter().any(|m| path == Path::new(&m.mount_path) && m.read_only != Some(true));
    assert!(writable(&settings.bpffs) && writable(&settings.run_dir));
    let CgroupRoot::At(cgroup) = settings.cgroup_root else { panic!("a container finds only its own cgroup") };
    assert!(mounts.iter().any(|m| cgroup == Path::new(&m.mount_path)));
    let config = mounts.iter().find(|m| m.name == "config").expect("the configuration is mounted");
    let asked = format!("--config={}/agent.yaml", config.mount_path);
    assert!(container.args.expect("arguments").contains(&asked), "{asked}");
}

#[test]
fn probes_and_ports_are_where_the_agent_listens() {
    let settings = settings("kustomize/base/agent.yaml");
    let container = container();
    let named: BTreeSet<_> =
        container.ports.into_iter().flatten().map(|p| (p.name.expect("a name"), p.container_port)).collect();
    let listens = |name: &str, port: u16| (name.to_owned(), i32::from(port));
    let expected = [listens("health", settings.health_bind.port()), listens("metrics", settings.metrics_bind.port())];
    assert_eq!(named, BTreeSet::from(expected));
    assert!(!settings.health_bind.ip().is_loopback(), "the kubelet and load balancers ask from outside");
    for (probe, path) in [(container.liveness_probe, "/livez"), (container.readiness_probe, "/readyz")] {
        assert_eq!(probe.and_then(|p| p.http_get).and_then(|get| get.path).as_deref(), Some(path));
    }
}

#[test]
fn the_container_has_the_rights_that_the_agent_asks_for_and_no_more() {
    let context = container().security_context.expect("a security context");
    let capabilities = context.capabilities.expect("capabilities");
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(capabilities.add, Some(["NET_ADMIN", "BPF", "PERFMON"].map(str::to_owned).to_vec()));
    assert_eq!(context.privileged, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    assert_eq!(context.allow_privilege_escalation, Some(false));
}
