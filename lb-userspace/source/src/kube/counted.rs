//! A layer of the client that counts and times its requests.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use crate::api_requests::ApiRequests;

/// Counts the requests to one address.
#[derive(Clone, Debug)]
pub struct Counted {
    requests: ApiRequests,
    host: String,
}

impl Counted {
    pub fn new(requests: ApiRequests, url: &Uri) -> Self {
        Self { requests, host: host(url) }
    }
}

impl<S> Layer<S> for Counted {
    type Service = CountedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountedService { counted: self.clone(), inner }
    }
}

#[derive(Clone, Debug)]
pub struct CountedService<S> {
    counted: Counted,
    inner: S,
}

impl<S, B> Service<Request<Body>> for CountedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: axum::body::HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, B::Error>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Counted { requests, host } = &self.counted;
        let mut counted = requests.begin(request.method(), host, is_watch(request.uri()));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            counted.answered(answer.status());
            // The request ends with its body, be it read or dropped.
            let until_read = move |body: B| {
                let keep = move |frame| {
                    let _ = &counted;
                    frame
                };
                body.map_frame(keep).boxed_unsync()
            };
            Ok(answer.map(until_read))
        })
    }
}

/// Host and port as they are in the URL, without the user and the password that may be there.
fn host(url: &Uri) -> String {
    let authority = url.authority().map_or("", http::uri::Authority::as_str);
    authority.rsplit('@').next().unwrap_or_default().to_owned()
}

/// Whether the answer goes on until somebody ends it.
fn is_watch(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair.split_once('='), Some(("watch", "true" | "1"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_their_port_and_no_password() {
        let of = |url: &str| host(&url.parse().expect("a URL"));
        assert_eq!(of("https://user:secret@192.0.2.1:6443/"), "192.0.2.1:6443");
        assert_eq!(of("https://[2001:db8::1]:6443"), "[2001:db8::1]:6443");
        assert_eq!(of("https://api.example.com"), "api.example.com");
    }

    #[test]
    fn watches_are_told_from_lists() {
        let is = |path: &str| is_watch(&path.parse().expect("a path"));
        assert!(is("/api/v1/services?allowWatchBookmarks=true&watch=true&resourceVersion=1"));
        assert!(!is("/api/v1/services?limit=500") && !is("/api/v1/services") && !is("/a?unwatch=true"));
    }
}
