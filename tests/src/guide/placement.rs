//! On which nodes a DaemonSet has a pod: by its node selector and its required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;

/// The labels of a node.
pub type Labels = BTreeMap<String, String>;

/// Whether the node with these labels has a pod of the set.
pub fn is_on(set: &DaemonSet, labels: &Labels) -> bool {
    let Some(pod) = &set.spec.template.spec else { return false };
    let selected = pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let attracted = required.is_none_or(|required| {
        required
            .node_selector_terms
            .iter()
            .any(|term| term.match_expressions.iter().flatten().all(|rule| holds(rule, labels)))
    });
    selected && attracted
}

fn holds(rule: &NodeSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&rule.key);
    let is_listed = value.is_some_and(|value| rule.values.iter().flatten().any(|listed| listed == value));
    match rule.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        other => panic!("an operator that no manifest here has: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selector_and_affinity_choose_nodes() {
        let set = |spec: serde_json::Value| -> DaemonSet {
            serde_json::from_value(json!({"spec": {"selector": {}, "template": {"spec": spec}}})).expect("a DaemonSet")
        };
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let (plain, labelled) = (labels(&[]), labels(&[("proxy", "ballast")]));
        let anywhere = set(json!({"containers": []}));
        assert!(is_on(&anywhere, &plain) && is_on(&anywhere, &labelled));
        let selecting = set(json!({"containers": [], "nodeSelector": {"proxy": "ballast"}}));
        assert!(!is_on(&selecting, &plain) && is_on(&selecting, &labelled));
        let rule = json!({"key": "proxy", "operator": "NotIn", "values": ["ballast"]});
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [rule]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let avoiding = set(json!({"containers": [], "affinity": affinity}));
        assert!(is_on(&avoiding, &plain) && !is_on(&avoiding, &labelled));
    }
}
