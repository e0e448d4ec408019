//! `ballast plan` over a real API server: a manifest as users write it plans just as the API server then takes it.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use lb_tests::agent::Agent;
use lb_tests::cluster::objects::NAMESPACE;
use lb_tests::cluster::{Hosted, SETTLE_LIMIT};
use lb_tests::fixture::Fixture;
use lb_tests::peers::eventually;
use lb_tests::topology::Families;
use serde_json::{Value, json};

/// Without anything that an API server allocates.
fn manifest(affinity: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "sessionAffinity": affinity,
            "ports": [
                {"name": "tcp", "protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "udp", "protocol": "UDP", "port": 53, "targetPort": 5353},
            ],
        },
    })
}

/// As `kubectl apply --server-side`.
fn apply(cluster: &Hosted, object: &Value) -> Result<()> {
    cluster.with_client(|client| async move {
        let services: Api<Service> = Api::namespaced(client, NAMESPACE);
        services.patch("web", &PatchParams::apply("tests").force(), &Patch::Apply(object)).await?;
        Ok(())
    })
}

/// As `kubectl get services,endpointslices -o json`.
fn listed(cluster: &Hosted) -> Result<Value> {
    cluster.with_client(|client| async move {
        let services: Api<Service> = Api::all(client.clone());
        let slices: Api<EndpointSlice> = Api::all(client);
        let mut items = Vec::new();
        for service in services.list(&ListParams::default()).await? {
            items.push(typed(&service, "v1", "Service")?);
        }
        for slice in slices.list(&ListParams::default()).await? {
            items.push(typed(&slice, "discovery.k8s.io/v1", "EndpointSlice")?);
        }
        Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
    })
}

fn typed(object: &impl serde::Serialize, version: &str, kind: &str) -> Result<Value> {
    let mut object = serde_json::to_value(object)?;
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    Ok(object)
}

/// Exit code, JSON (null: none), and standard error.
fn plan(agent: &Agent, change: &Value) -> Result<(i32, Value, String)> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), change.to_string())?;
    let path = file.path().to_str().context("a path of text")?;
    let output = agent.cli(&["plan", "-f", path, "-o", "json"])?;
    let said = String::from_utf8(output.stderr)?;
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok((output.status.code().context("an exit code")?, json, said))
}

#[test]
fn a_manifest_as_users_write_it_plans_as_the_api_server_takes_it() -> Result<()> {
    let fixture = Fixture::of(Families::Both, "kube-plan", 2);
    let host = fixture.topology.outside("api", &fixture.node)?;
    let cluster = Hosted::start(&host)?;
    let mut agent = cluster.agent(&fixture.node, &[])?;
    agent.restart()?;
    let (none, client_ip) = (manifest("None"), manifest("ClientIP"));
    // Only an API server allocates a cluster IP.
    let (code, _, said) = plan(&agent, &none)?;
    assert!(code == 2 && said.contains("Service default/web: it has no clusterIP"), "{code} {said}");
    apply(&cluster, &none)?;
    cluster.put_pods("web", &[&fixture.backends[0], &fixture.backends[1]])?;
    // Two ports of two backends, in both families.
    eventually("the tables hold them", SETTLE_LIMIT, || {
        (agent.states().ok()?.iter().filter(|(service, ..)| service == "web").count() == 8).then_some(())
    });
    for same in [none, listed(&cluster)?] {
        let (code, planned, said) = plan(&agent, &same)?;
        assert_eq!(code, 0, "{said} {planned:#}");
    }
    let (code, planned, said) = plan(&agent, &client_ip)?;
    assert_eq!(code, 1, "{said}");
    let services = planned["services"].as_array().context("services")?;
    assert_eq!(services.len(), 2, "{planned:#}");
    for service in services {
        assert_eq!(service["settings"], json!([{"name": "affinitySeconds", "before": "0", "after": "10800"}]));
        assert_eq!((&service["frontends"], &service["backends"]), (&json!([]), &json!([])), "all stay: {planned:#}");
    }
    apply(&cluster, &client_ip)?;
    eventually("the agent has the change", SETTLE_LIMIT, || (plan(&agent, &client_ip).ok()?.0 == 0).then_some(()));
    // A slice by its name, as the API has it, without its endpoints.
    let mut slices = listed(&cluster)?;
    let items = slices["items"].as_array_mut().context("items")?;
    items.retain(|item| item["metadata"]["name"] == "web-ipv4");
    items[0]["endpoints"] = json!([]);
    let (code, planned, said) = plan(&agent, &slices)?;
    assert_eq!(code, 1, "{said}");
    let changes: Vec<&Value> = planned["services"].as_array().context("services")?.iter().collect();
    assert_eq!(changes.len(), 2, "{planned:#}");
    for service in changes {
        let drained = service["backends"].as_array().context("backends")?;
        assert!(drained.len() == 2 && drained.iter().all(|one| one["change"] == "drain"), "{planned:#}");
        assert_eq!((&service["takingBefore"], &service["takingAfter"]), (&json!(4), &json!(2)));
    }
    Ok(())
}
