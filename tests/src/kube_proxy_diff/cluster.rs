//! A small cluster: objects as a user writes them, and as an API server returns them.

use serde_json::{Value, json};

use super::settings::ProxySettings;

/// Objects of one namespace. Clusters of a batch share no address, no node port and no namespace.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub seed: u64,
    /// Its place in a batch: addresses and ports are taken from there.
    pub place: u8,
    pub services: Vec<Value>,
    pub slices: Vec<Value>,
}

impl Cluster {
    /// Services as the API hands them out.
    pub fn served_services(&self, settings: &ProxySettings) -> Vec<Value> {
        self.services.iter().map(|service| settings.as_kube_proxy_sees(service_with_defaults(service))).collect()
    }

    /// Slices as the API hands them out.
    pub fn served_slices(&self) -> Vec<Value> {
        self.slices.iter().map(slice_with_defaults).collect()
    }

    /// Its objects as a manifest.
    pub fn yaml(&self) -> String {
        let header = [("v1", "Service", &self.services), ("discovery.k8s.io/v1", "EndpointSlice", &self.slices)];
        let mut text = String::new();
        for (api_version, kind, objects) in header {
            for object in objects {
                let mut object = object.clone();
                object["apiVersion"] = api_version.into();
                object["kind"] = kind.into();
                let yaml = serde_saphyr::to_string(&object).unwrap_or_else(|error| format!("# {error}: {object}\n"));
                text.push_str("---\n");
                text.push_str(&yaml);
            }
        }
        text
    }
}

fn fill(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// `SetDefaults_Service` of the API server, as far as proxies look.
fn service_with_defaults(service: &Value) -> Value {
    let mut service = service.clone();
    let spec = &mut service["spec"];
    fill(spec, "type", "ClusterIP".into());
    fill(spec, "sessionAffinity", "None".into());
    let affine = spec["sessionAffinity"] == "ClientIP";
    if affine && spec["sessionAffinityConfig"].is_null() {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10_800}});
    }
    if spec["type"] == "ExternalName" {
        return service;
    }
    if let Some(first) = spec.pointer("/clusterIPs/0").cloned() {
        fill(spec, "clusterIP", first);
    }
    fill(spec, "internalTrafficPolicy", "Cluster".into());
    let external = spec["type"] != "ClusterIP" || spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty());
    if external {
        fill(spec, "externalTrafficPolicy", "Cluster".into());
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        fill(port, "protocol", "TCP".into());
    }
    for ingress in
        service.pointer_mut("/status/loadBalancer/ingress").and_then(Value::as_array_mut).into_iter().flatten()
    {
        if !ingress["ip"].is_null() {
            fill(ingress, "ipMode", "VIP".into());
        }
    }
    service
}

/// `SetDefaults_EndpointPort` of the API server.
fn slice_with_defaults(slice: &Value) -> Value {
    let mut slice = slice.clone();
    for port in slice["ports"].as_array_mut().into_iter().flatten() {
        fill(port, "name", "".into());
        fill(port, "protocol", "TCP".into());
    }
    slice
}
