//! What a user sees of good and broken manifests.

use super::*;

fn error_of(text: &str) -> String {
    parse("web.yaml", text).unwrap_err().to_string()
}

fn kinds(text: &str) -> Vec<String> {
    let name = |object: &Object| match object {
        Object::Service(service) => format!("Service {}", service.metadata.name.as_deref().unwrap_or("?")),
        Object::Slice(slice) => format!("EndpointSlice {}", slice.metadata.name.as_deref().unwrap_or("?")),
        Object::Node(node) => format!("Node {}", node.metadata.name.as_deref().unwrap_or("?")),
        Object::Other(text) => format!("other {text}"),
    };
    parse("web.yaml", text).unwrap().iter().map(name).collect()
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
const SLICE: &str =
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\naddressType: IPv4\nendpoints: []\n";

#[test]
fn several_documents_and_unknown_kinds() {
    let text = format!(
        "# head\n%YAML 1.2\n---\n{SERVICE}---\n# nothing\n---\n{SLICE}...\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: n}}\n"
    );
    assert_eq!(kinds(&text), ["Service web", "EndpointSlice web-1", "other Pod n/p"]);
    assert_eq!(kinds(""), [""; 0]);
    assert_eq!(kinds("---\n# only a comment\n"), [""; 0]);
}

#[test]
fn json_is_yaml() {
    assert_eq!(kinds(r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}"#), ["Service web"]);
}

#[test]
fn lists_are_unpacked() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n";
    assert_eq!(kinds(text), ["Service a", "other Secret s"]);
    let text = "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n";
    assert_eq!(kinds(text), ["Service a", "Service b"]);
    let text = "apiVersion: v1\nkind: NodeList\nitems:\n- metadata: {name: n1}\n";
    assert_eq!(kinds(text), ["Node n1"]);
}

#[test]
fn broken_yaml_names_line_and_column() {
    let text = error_of(&format!("{SERVICE}spec:\n  ports:\n  - port: 80\n   name: web\n"));
    assert!(text.starts_with("web.yaml:7:"), "{text}");
    assert!(text.contains("what was known of it stays as it was"), "{text}");
}

#[test]
fn a_wrong_value_names_line_column_and_what_was_expected() {
    let text = error_of(&format!("{SLICE}---\n{SERVICE}spec:\n  ports:\n  - port: eighty\n"));
    assert!(text.starts_with("web.yaml:12:11:"), "{text}");
    assert!(text.contains("i32") || text.contains("integer"), "{text}");
}

#[test]
fn a_wrong_value_in_a_list_names_its_item() {
    let text = error_of(
        "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n  spec: {ports: [{port: eighty}]}\n",
    );
    assert!(text.starts_with("web.yaml:4:3: in this list item: "), "{text}");
    assert!(text.contains("expected i32"), "{text}");
}

#[test]
fn what_is_no_object_is_refused_with_its_place() {
    let text = error_of(&format!("{SERVICE}---\nname: web\n"));
    assert!(text.starts_with("web.yaml:5:1: expected a Kubernetes object with apiVersion and kind"), "{text}");
    let text = error_of("just text\n");
    assert!(text.starts_with("web.yaml:1:1: "), "{text}");
    let text = error_of("apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n");
    assert!(text.contains("expected discovery.k8s.io/v1"), "{text}");
}

#[test]
fn a_kind_of_the_same_name_in_another_group_is_none_of_ours() {
    let text = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web, namespace: n}\n";
    assert_eq!(kinds(text), ["other serving.knative.dev/v1 Service n/web"]);
}

#[test]
fn a_bad_document_and_a_bad_item_spoil_no_other() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- {apiVersion: v1}\n";
    let parsed = parse_all("web.yaml", &format!("{SERVICE}---\nbroken: [\n---\n{SLICE}---\n{list}"));
    let names: Vec<String> = parsed.objects.iter().map(|object| object.identity().unwrap().1.to_string()).collect();
    assert_eq!(names, ["default/web", "default/web-1", "default/a"]);
    let errors: Vec<String> = parsed.errors.iter().map(ToString::to_string).collect();
    assert!(errors[0].starts_with("web.yaml:6:") || errors[0].starts_with("web.yaml:5:"), "{errors:?}");
    assert!(errors[1].contains("expected a Kubernetes object"), "{errors:?}");
}

#[test]
fn a_document_whose_aliases_expand_to_too_much_is_refused_by_name_and_no_other_one() {
    let level = |n: usize| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(9));
    let levels: String = (1..9).map(level).collect();
    let parsed = parse_all("web.yaml", &format!("a0: &a0 [x,x,x,x,x,x,x,x,x]\n{levels}---\n{SERVICE}"));
    let errors: Vec<String> = parsed.errors.iter().map(ToString::to_string).collect();
    let [error] = &errors[..] else { panic!("one document is bad: {errors:?}") };
    assert!(error.starts_with("web.yaml:") && error.contains("alias") && error.contains("10000"), "{error}");
    assert_eq!(parsed.objects.len(), 1);
    // As a person writes it: said once, used by all endpoints.
    let endpoints = "- {addresses: [10.0.0.1], conditions: *ready}\n".repeat(90);
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web}\naddressType: IPv4\n";
    let text = format!("x: &ready {{ready: true, serving: true}}\n{slice}endpoints:\n{endpoints}");
    assert_eq!(kinds(&text), ["EndpointSlice web"]);
}

#[test]
fn a_bad_document_says_which_service_is_not_known() {
    let slice = |labels: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: a-1, namespace: ns, labels: {labels}}}\nendpoints: 5\n"
        )
    };
    let named = |name: &str| ObjectName::new("ns", name);
    let of_slice = UnreadKind::Slice { name: named("a-1"), service: named("a") };
    let service = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: ns}, spec: 5}";
    let file = || Some(UnreadKind::Unknown("web.yaml".to_owned()));
    for (text, unread) in [
        (format!("{service}\n"), Some(UnreadKind::Service(named("a")))),
        (format!("apiVersion: v1\nkind: List\nitems: [{service}]\n"), Some(UnreadKind::Service(named("a")))),
        (slice("{kubernetes.io/service-name: a}"), Some(of_slice)),
        (slice("{}"), None),
        (slice("5"), Some(UnreadKind::Unknown("EndpointSlice ns/a-1".to_owned()))),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: [}\n".to_owned(), file()),
        ("apiVersion: v1\nkind: Service\nmetadata: 5\n".to_owned(), file()),
        ("apiVersion: v1\nkind: ServiceList\nitems: 5\n".to_owned(), file()),
        ("just text\n".to_owned(), file()),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: 5\n".to_owned(), None),
    ] {
        let parsed = parse_all("web.yaml", &text);
        assert_eq!(parsed.errors.len(), 1, "{text}");
        assert_eq!(parsed.unread.into_iter().map(|unread| unread.what).next(), unread, "{text}");
    }
}
