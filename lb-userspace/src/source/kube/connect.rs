//! The way to the API: whose credentials, which address, and connections that nothing else uses.

use std::{path::Path, time::Duration};

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use tower::ServiceExt as _;

use super::{KubeSettings, bounds::ANSWER_LIMIT, reason};
use crate::source::SourceError;

/// Where a pod finds its own credentials.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// A connection that is idle for so long is asked for a sign of life, then so often.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// A connection on which something stays unacknowledged for so long is dead: `TCP_USER_TIMEOUT`.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);

pub async fn config(settings: &KubeSettings) -> Result<Config, SourceError> {
    let mut config = if let Some(path) = &settings.kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(access)?;
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(access)?
    } else if Path::new(POD_TOKEN).exists() {
        // The address comes from the flag below, else from the environment.
        if settings.api_server.is_some() { Config::incluster_dns() } else { Config::incluster() }.map_err(access)?
    } else if let Some(url) = &settings.api_server {
        Config::new(parse_url(url)?)
    } else {
        let reason = format!("no kubeconfig is given, and there is no {POD_TOKEN}");
        return Err(SourceError::ApiAccess { reason });
    };
    if let Some(url) = &settings.api_server {
        config.cluster_url = parse_url(url)?;
    }
    Ok(config)
}

/// A URL without the user and the password that may stand in it.
pub fn shown(url: &http::Uri) -> String {
    let host = url.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    format!("{}://{host}{}", url.scheme_str().unwrap_or_default(), url.path())
}

/// A client that opens a TCP connection for each request (HTTP/1.1, none is kept), so that no two calls ever share one that
/// died. TLS sessions are resumed where the server allows it.
pub fn client(config: &Config) -> Result<Client, SourceError> {
    if let Some(proxy) = &config.proxy_url {
        let reason = format!("proxy {}: proxies are not supported", shown(proxy));
        return Err(SourceError::ApiAccess { reason });
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(ANSWER_LIMIT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT));
    let connector = config.rustls_https_connector_with_connector(connector).map_err(access)?;
    let http = HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let http = http.map_err(tower::BoxError::from);
    let builder = ClientBuilder::new(http, config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer().map_err(access)?);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer().map_err(access)? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}

fn parse_url(url: &str) -> Result<http::Uri, SourceError> {
    let parsed: http::Uri =
        url.parse().map_err(|error| SourceError::ApiAccess { reason: format!("--api-server {url}: {error}") })?;
    if parsed.scheme().is_none() || parsed.authority().is_none() {
        let reason = format!("--api-server {url}: expected a URL as https://10.0.0.1:6443");
        return Err(SourceError::ApiAccess { reason });
    }
    Ok(parsed)
}

fn access(error: impl std::error::Error) -> SourceError {
    SourceError::ApiAccess { reason: reason(&error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        let shown = |url: &str| shown(&url.parse().expect("a URL"));
        assert_eq!(shown("https://user:secret@192.0.2.1:6443/"), "https://192.0.2.1:6443/");
        assert_eq!(shown("https://[2001:db8::1]:6443/"), "https://[2001:db8::1]:6443/");
    }
}
