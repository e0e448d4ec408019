//! The files of deploy/ agree with each other and with the agent. Needs no root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use lb_userspace::config::{CgroupRoot, Options, Settings, Source};
use serde_json::{Value, json};

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

/// As the job of kube-proxy, which dashboards and alerts select.
#[test]
fn the_monitor_scrapes_the_agents_as_kube_proxys_job() {
    let read = |path: &str| -> Value {
        serde_saphyr::from_str(&std::fs::read_to_string(deploy(path)).expect("it is there")).expect("YAML")
    };
    let (monitor, daemon_set) = (read("monitoring/podmonitor.yaml"), read("kustomize/base/daemonset.yaml"));
    let labels = &daemon_set["spec"]["template"]["metadata"]["labels"];
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels") {
        assert_eq!(&labels[label], value, "{label}");
    }
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let ports = container().ports.into_iter().flatten();
    let named: Vec<_> = ports.filter(|port| port.name.as_deref() == endpoint["port"].as_str()).collect();
    assert_eq!(named.len(), 1, "{endpoint}");
    assert_eq!(endpoint["path"], Value::Null, "the agent serves the default, /metrics");
    let job = json!({"targetLabel": "job", "replacement": "kube-proxy"});
    assert!(endpoint["relabelings"].as_array().expect("relabelings").contains(&job), "{endpoint}");
}

#[test]
fn the_container_has_the_rights_that_the_agent_asks_for_and_no_more() {
    let context = container().security_context.expect("a security context");
    let capabilities = context.capabilities.expect("capabilities");
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(capabilities.add, Some(["NET_ADMIN", "NET_RAW", "BPF", "PERFMON"].map(str::to_owned).to_vec()));
    assert_eq!(context.privileged, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    assert_eq!(context.allow_privilege_escalation, Some(false));
}

fn cleanup_pod() -> PodSpec {
    let text = std::fs::read_to_string(deploy("kustomize/cleanup/daemonset.yaml")).expect("it is there");
    let daemon_set: DaemonSet = serde_saphyr::from_str(&text).expect("a DaemonSet");
    daemon_set.spec.template.spec.expect("a pod")
}

/// The pod is ready once the first container has cleaned up, and the second one stays.
#[test]
fn the_cleanup_ends_in_its_first_container_and_is_held_in_its_second() {
    let pod = cleanup_pod();
    let [first] = &pod.init_containers.clone().expect("one")[..] else { panic!("one container cleans up") };
    let [second] = &pod.containers[..] else { panic!("one container stays") };
    let arguments = |container: &Container| container.args.clone().expect("arguments");
    let settings = settings("kustomize/base/agent.yaml");
    let folders =
        [format!("--bpffs={}", settings.bpffs.display()), format!("--run-dir={}", settings.run_dir.display())];
    assert_eq!(arguments(first), [&["cleanup".to_owned()][..], &folders].concat());
    assert_eq!(arguments(second), [&["cleanup".to_owned(), "--hold".to_owned()][..], &folders].concat());
    let agent = container();
    let mut rights = agent.security_context.clone().expect("a security context");
    let added = rights.capabilities.as_mut().and_then(|capabilities| capabilities.add.as_mut()).expect("a list");
    added.retain(|name| name != "NET_RAW");
    for container in [first, second] {
        assert_eq!(container.image, agent.image);
        assert_eq!(container.security_context.as_ref(), Some(&rights), "it sends no segments");
        let mounts: Vec<_> = container.volume_mounts.iter().flatten().collect();
        for folder in [&settings.bpffs, &settings.run_dir] {
            assert!(
                mounts.iter().any(|m| folder == Path::new(&m.mount_path) && m.read_only != Some(true)),
                "{folder:?}"
            );
        }
    }
    assert_eq!((pod.host_network, pod.automount_service_account_token), (Some(true), Some(false)));
    let everywhere =
        pod.tolerations.iter().flatten().any(|toleration| toleration.operator.as_deref() == Some("Exists"));
    assert!(everywhere, "the agent runs on every node, too");
}

fn text(path: &str) -> Value {
    let text = std::fs::read_to_string(deploy(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The operations of the patch in a kustomization, by path.
fn patched(path: &str, name: &str) -> BTreeMap<String, String> {
    let kustomization = text(path);
    let change = &kustomization["patches"][0];
    assert_eq!(change["target"], json!({"kind": "DaemonSet", "name": name}), "{path}");
    let operations: Vec<Value> =
        serde_saphyr::from_str(change["patch"].as_str().expect("a patch")).expect("operations");
    let operation = |operation: &Value| {
        let field = |name: &str| operation[name].as_str().expect("a text").to_owned();
        (field("path"), field("value"))
    };
    operations.iter().map(operation).collect()
}

/// A node has one proxy: Ballast where the label says so, and kube-proxy everywhere else.
#[test]
fn the_label_of_a_node_decides_between_both_proxies() {
    const SELECTOR: &str = "/spec/template/spec/nodeSelector/ballast.dev~1proxy";
    let migration = patched("kustomize/migrate/kustomization.yaml", "ballast");
    assert_eq!(migration, BTreeMap::from([(SELECTOR.to_owned(), "ballast".to_owned())]));
    let kube_proxy = text("kustomize/migrate/kube-proxy.yaml");
    let affinity = &kube_proxy["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let rule = json!({"key": "ballast.dev/proxy", "operator": "NotIn", "values": ["ballast"]});
    assert_eq!(*terms, json!([{"matchExpressions": [rule]}]));
    let back = patched("kustomize/hand-over/kustomization.yaml", "ballast-cleanup");
    assert_eq!(back.get(SELECTOR).map(String::as_str), Some("kube-proxy"));
    assert_eq!(back.get("/spec/template/spec/initContainers/0/args/1").map(String::as_str), Some("--hand-over"));
}

#[test]
fn the_examples_have_the_image_of_the_agents() {
    let images = |path: &str| text(path)["images"].clone();
    let agents = images("kustomize/example/kustomization.yaml");
    for (example, resource) in [("cleanup", "../../cleanup"), ("hand-over", "../../hand-over")] {
        let path = format!("kustomize/example/{example}/kustomization.yaml");
        assert_eq!(images(&path), agents, "{path}");
        assert_eq!(text(&path)["resources"], json!([resource]), "{path}");
    }
}
