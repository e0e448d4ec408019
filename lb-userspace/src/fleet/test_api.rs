//! An API server for tests: it reviews tokens and rights, lists pods and nodes, makes tokens, and counts what it is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::AUDIENCE;

/// The ServiceAccount whose tokens may be requested.
const ACCOUNT: &str = "system:serviceaccount:kube-system:ballast-fleet";

/// A token of this user.
pub fn token(user: &str, audience: &str) -> String {
    let claims = json!({"sub": user, "aud": [audience]}).to_string();
    format!("e30.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

#[derive(Default)]
struct State {
    /// How often each path was asked for.
    asked: BTreeMap<String, usize>,
    revoked: BTreeSet<String>,
    pods: Vec<(String, IpAddr)>,
    /// Nodes without an agent.
    bare: Vec<String>,
    ca: String,
    fails: bool,
    hangs: bool,
    knows_no_audience: bool,
}

/// `viewer` may get `/fleet/status`, `operator` and the ServiceAccount everything below `/fleet/`.
#[derive(Clone, Default)]
pub struct TestApi(Arc<Mutex<State>>);

impl TestApi {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let answer = move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, tower::BoxError>(api.answer(request).await) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }

    pub fn revoke(&self, user: &str) {
        self.state().revoked.insert(user.to_owned());
    }

    pub fn fail(&self, fails: bool) {
        self.state().fails = fails;
    }

    pub fn hang(&self) {
        self.state().hangs = true;
    }

    pub fn forget_audiences(&self) {
        self.state().knows_no_audience = true;
    }

    /// The agents with their addresses, nodes without an agent, and the CA.
    pub fn run(&self, pods: Vec<(String, IpAddr)>, bare: Vec<String>, ca: String) {
        let mut state = self.state();
        (state.pods, state.bare, state.ca) = (pods, bare, ca);
    }

    pub fn token_reviews(&self) -> usize {
        self.asked("/apis/authentication.k8s.io/v1/tokenreviews")
    }

    pub fn access_reviews(&self) -> usize {
        self.asked("/apis/authorization.k8s.io/v1/subjectaccessreviews")
    }

    fn asked(&self, path: &str) -> usize {
        self.state().asked.get(path).copied().unwrap_or_default()
    }

    /// All requests.
    pub fn requests(&self) -> usize {
        self.state().asked.values().sum()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        *self.state().asked.entry(path.clone()).or_default() += 1;
        if self.state().hangs {
            std::future::pending::<()>().await;
        }
        let body = body.collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let fails = self.state().fails;
        let (status, answer) = if fails {
            (500, json!({"kind": "Status", "status": "Failure", "message": "no etcd", "reason": "", "code": 500}))
        } else {
            (200, self.state().reply(&parts.method, &path, parts.uri.query().unwrap_or_default(), &body))
        };
        Response::builder().status(status).body(Body::from(answer.to_string().into_bytes())).expect("an answer")
    }
}

impl State {
    fn reply(&self, method: &Method, path: &str, query: &str, body: &Value) -> Value {
        match (method, path.rsplit('/').next().unwrap_or_default()) {
            (&Method::POST, "tokenreviews") => self.review_token(body),
            (&Method::POST, "subjectaccessreviews") => review_access(body),
            (&Method::POST, "token") => {
                let audience = body["spec"]["audiences"][0].as_str().expect("an audience");
                let status = json!({"token": token(ACCOUNT, audience), "expirationTimestamp": "2030-01-01T00:00:00Z"});
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": body["spec"], "status": status})
            }
            (&Method::GET, "pods") => page(query, self.pods.iter().map(|(node, address)| {
                json!({"metadata": {"name": format!("ballast-{node}")}, "spec": {"nodeName": node, "containers": []},
                    "status": {"phase": "Running", "podIP": address}})
            })),
            (&Method::GET, "nodes") => {
                let names = self.pods.iter().map(|(node, _)| node).chain(&self.bare);
                page(query, names.map(|node| json!({"metadata": {"name": node}})))
            }
            (&Method::GET, "ballast-fleet") => {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ballast-fleet"}, "data": {"ca.crt": self.ca}})
            }
            other => panic!("not asked for: {other:?}"),
        }
    }

    fn review_token(&self, body: &Value) -> Value {
        let shown = body["spec"]["token"].as_str().expect("a token");
        let claims = BASE64_URL_SAFE_NO_PAD.decode(shown.split('.').nth(1).expect("claims")).expect("base64");
        let claims: Value = serde_json::from_slice(&claims).expect("JSON");
        let user = claims["sub"].as_str().expect("a subject");
        let known = ["viewer", "operator", ACCOUNT].contains(&user) && !self.revoked.contains(user);
        assert_eq!(body["spec"]["audiences"], json!([AUDIENCE]));
        let audiences = if self.knows_no_audience { json!([]) } else { json!([AUDIENCE]) };
        let status = if known {
            json!({"authenticated": true, "user": {"username": user, "groups": ["g"]}, "audiences": audiences})
        } else {
            json!({"authenticated": false, "error": "unknown"})
        };
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": body["spec"], "status": status})
    }
}

fn page(query: &str, items: impl Iterator<Item = Value>) -> Value {
    let value = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == name).and_then(|(_, value)| value.parse::<usize>().ok())
    };
    let (from, limit) = (value("continue").unwrap_or_default(), value("limit").expect("a page"));
    let items: Vec<Value> = items.skip(from).take(limit).collect();
    let more = if items.len() == limit { (from + limit).to_string() } else { String::new() };
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1", "continue": more}, "items": items})
}

fn review_access(body: &Value) -> Value {
    let spec = &body["spec"];
    assert_eq!((&spec["groups"], &spec["nonResourceAttributes"]["verb"]), (&json!(["g"]), &json!("get")));
    let path = spec["nonResourceAttributes"]["path"].as_str().expect("a path");
    let allowed = spec["user"] != "viewer" || path == "/fleet/status";
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec, "status": {"allowed": allowed}})
}
