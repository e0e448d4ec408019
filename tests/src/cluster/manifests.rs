//! A kustomize base as objects: just what deploy/ uses of kustomize, and an error for anything else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    namespace: String,
    labels: Vec<Labels>,
    resources: Vec<String>,
    config_map_generator: Vec<ConfigMap>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    pairs: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigMap {
    name: String,
    files: Vec<String>,
}

/// The objects that `kubectl apply -k FOLDER` would send, but for the hash in the names of generated ones.
pub fn read_base(folder: &Path) -> Result<Vec<DynamicObject>> {
    let read =
        |name: &str| fs::read_to_string(folder.join(name)).with_context(|| folder.join(name).display().to_string());
    let base: Kustomization = serde_saphyr::from_str(&read("kustomization.yaml")?)?;
    let mut objects: Vec<Value> = Vec::new();
    for file in &base.resources {
        objects.extend(serde_saphyr::from_multiple::<Value>(&read(file)?).with_context(|| file.clone())?);
    }
    for map in &base.config_map_generator {
        let data: BTreeMap<&String, String> =
            map.files.iter().map(|file| Ok((file, read(file)?))).collect::<Result<_>>()?;
        objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": map.name}, "data": data}));
    }
    let object = |value| {
        let mut object: DynamicObject = serde_json::from_value(value)?;
        object.metadata.namespace = Some(base.namespace.clone());
        let labels = object.metadata.labels.get_or_insert_default();
        labels.extend(base.labels.iter().flat_map(|labels| labels.pairs.clone()));
        Ok(object)
    };
    objects.into_iter().map(object).collect()
}

/// Applies an object as `kubectl apply --server-side` does, unknown fields being errors. With `dry_run` nothing is stored.
pub async fn apply(client: &Client, object: &DynamicObject, dry_run: bool) -> Result<DynamicObject> {
    let types = object.types.as_ref().context("an object without apiVersion and kind")?;
    let (kind, capabilities) = pinned_kind(client, &GroupVersionKind::try_from(types)?)
        .await
        .with_context(|| format!("{} {}", types.api_version, types.kind))?;
    let name = object.metadata.name.as_deref().context("an object without a name")?;
    let mut object = object.clone();
    let namespaced = capabilities.scope == Scope::Namespaced;
    object.metadata.namespace = object.metadata.namespace.filter(|_| namespaced);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let mut parameters = PatchParams::apply("tests").force().validation_strict();
    parameters.dry_run = dry_run;
    api.patch(name, &parameters, &Patch::Apply(&object)).await.with_context(|| format!("{} {name}", kind.kind))
}

/// Makes the objects of a manifest of the tests, their namespaces and, since a server lets nobody write both, the status of Services.
pub async fn create_services(client: &Client, yaml: &str) -> Result<()> {
    for value in serde_saphyr::from_multiple::<Value>(yaml)? {
        let object: DynamicObject = serde_json::from_value(value.clone())?;
        if let Some(namespace) = &object.metadata.namespace {
            let of = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            apply(client, &serde_json::from_value(of)?, false).await?;
        }
        let made = apply(client, &object, false).await?;
        if let (Some(status), Some(name)) = (value.get("status"), &object.metadata.name) {
            let services: Api<Service> = Api::namespaced(client.clone(), &made.namespace().unwrap_or_default());
            let patch = Patch::Merge(json!({"status": status}));
            services.patch_status(name, &PatchParams::default(), &patch).await.with_context(|| name.clone())?;
        }
    }
    Ok(())
}
