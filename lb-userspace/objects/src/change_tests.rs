//! What a manifest replaces in a snapshot, and what it leaves alone.

use super::*;
use crate::manifest::snapshot;

const PRESENT: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.1, fd00::1]
  healthCheckNodePort: 32000
  externalTrafficPolicy: Local
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: demo, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-2, namespace: demo, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.3]}]
";

const API: Rules = Rules::Api { now_s: 1_700_000_000 };

fn changed(text: &str, rules: Rules) -> Result<Changed, ChangeError> {
    let change = ObjectChange::parse("change.yaml", text)?;
    change.over(&snapshot(PRESENT), &AllowedAnnotations::default(), rules)
}

fn service(snapshot: &Snapshot, name: &str) -> Service {
    (**snapshot.services.get(&ObjectName::new("demo", name)).expect("a Service")).clone()
}

/// Namespace-less addresses of all endpoints.
fn endpoints(snapshot: &Snapshot) -> Vec<String> {
    let all = snapshot.slices.values().flat_map(|slice| &slice.endpoints);
    all.map(|endpoint| endpoint.address.to_string()).collect()
}

#[test]
fn a_slice_replaces_the_one_of_its_name_also_where_it_comes_to_another_service() {
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-2, namespace: demo, \
        labels: {kubernetes.io/service-name: OWNER}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\n\
        endpoints: [{addresses: [10.1.0.9]}]\n";
    for owner in ["web", "other"] {
        let changed = changed(&slice.replace("OWNER", owner), API).expect("good");
        let mut found = endpoints(&changed.snapshot);
        found.sort();
        assert_eq!(found, ["10.1.0.2", "10.1.0.9"], "{owner}");
    }
    assert_eq!(endpoints(&snapshot(PRESENT)), ["10.1.0.2", "10.1.0.3"]);
}

#[test]
fn what_the_api_server_allocates_stays_where_a_manifest_does_not_give_it() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n\
        spec: {type: LoadBalancer, externalTrafficPolicy: Local, sessionAffinity: ClientIP, ports: [{name: http, port: 80}, {name: tls, port: 443}]}\n";
    let found = service(&changed(text, API).expect("good").snapshot, "web");
    let before = service(&snapshot(PRESENT), "web");
    assert_eq!(found.cluster_ips, before.cluster_ips);
    assert_eq!(found.ports.iter().map(|port| port.node_port).collect::<Vec<_>>(), [Some(30_080), None]);
    assert_eq!(found.health_check_node_port, Some(32_000));
    assert_eq!(found.load_balancer_ips, before.load_balancer_ips);
    assert_eq!((found.affinity_timeout_s, found.created_s), (10_800, before.created_s));
}

#[test]
fn a_first_cluster_ip_that_stays_keeps_the_second_one_and_another_one_does_not() {
    let text = |ip: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: demo}}\n\
            spec: {{clusterIP: {ip}, ports: [{{name: http, port: 80}}]}}\n"
        )
    };
    let found = |ip| service(&changed(&text(ip), API).expect("good").snapshot, "web");
    assert_eq!(found("10.96.0.1").cluster_ips.len(), 2);
    assert_eq!(found("10.96.0.77").cluster_ips, ["10.96.0.77".parse::<std::net::IpAddr>().expect("valid")]);
    // Of a type without them, neither node ports nor load balancers are left.
    let found = found("10.96.0.1");
    assert_eq!((found.ports[0].node_port, found.health_check_node_port), (None, None));
    assert!(found.load_balancer_ips.is_empty());
}

#[test]
fn a_file_is_what_it_says() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n\
        spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}\n";
    let found = service(&changed(text, Rules::File).expect("good").snapshot, "web");
    assert_eq!((found.cluster_ips.len(), found.ports[0].node_port, found.created_s), (1, None, None));
}

#[test]
fn a_new_service_is_the_youngest_and_needs_a_cluster_ip_of_its_own() {
    let text = |spec: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: new, namespace: demo}}\nspec: {{{spec}ports: [{{port: 80}}]}}\n"
        )
    };
    let found = service(&changed(&text("clusterIP: 10.96.0.5, "), API).expect("good").snapshot, "new");
    assert_eq!(found.created_s, Some(1_700_000_000));
    let error = changed(&text(""), API).expect_err("nobody allocates one").to_string();
    assert!(error.contains("Service demo/new") && error.contains("no clusterIP"), "{error}");
}

#[test]
fn what_is_refused_in_part_is_named_and_the_rest_is_planned() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n\
        spec: {clusterIP: 10.96.0.1, externalIPs: [nonsense], ports: [{name: http, port: 80}]}\n";
    let changed = changed(text, API).expect("good");
    assert_eq!(changed.refusals.len(), 1);
    assert!(changed.refusals[0].reason.contains("nonsense"));
    assert_eq!(service(&changed.snapshot, "web").cluster_ips.len(), 2);
}

#[test]
fn a_change_without_effect_or_with_two_of_one_name_is_refused() {
    let error = |text: &str| changed(text, API).expect_err("refused").to_string();
    assert!(error("").contains("change.yaml holds neither a Service nor an EndpointSlice"));
    assert!(error("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n").contains("neither"));
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1}\n";
    assert_eq!(error(&service.repeat(2)), "Service default/web is there more than once: keep one of them");
    assert!(error("kind: Service\n  name: [\n").starts_with("change.yaml:2:"));
    let with_node = format!("{PRESENT}---\napiVersion: v1\nkind: Node\nmetadata: {{name: n1}}\n");
    assert_eq!(ObjectChange::parse("c", &with_node).expect("good").ignored, ["Node n1"]);
}

#[test]
fn what_cannot_be_read_counts_as_read_where_the_change_has_it() {
    let name = |name: &str| ObjectName::new("demo", name);
    let unread = |what| lb_model::Unread { what, uid: 0 };
    let (web, other) = (unread(UnreadKind::Service(name("web"))), unread(UnreadKind::Service(name("other"))));
    let slice = unread(UnreadKind::Slice { name: name("web-1"), service: name("web") });
    let present = Snapshot { unread: Arc::new([web, other.clone(), slice].into()), ..Snapshot::default() };
    let change = ObjectChange::parse("c", PRESENT).expect("good");
    let changed = change.over(&present, &AllowedAnnotations::default(), API).expect("good");
    assert_eq!(*changed.snapshot.unread, [other].into());
}
