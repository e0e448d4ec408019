//! TLS of the listener and of its clients: TLS 1.3, a certificate from files that may change, and a name that is the same on every node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, version};

/// How often the files are read again.
const READ_AGAIN: Duration = Duration::from_mins(1);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: no certificate or key in PEM can be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: String },
    #[error("{} and its key are not usable: {error}", path.display())]
    Unusable { path: PathBuf, error: rustls::Error },
    #[error("the CA is not usable: {error}")]
    Ca { error: String },
}

/// A certificate chain and its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The listener's TLS, as the files are now.
pub fn server(files: &CertificateFiles) -> Result<ServerConfig, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, &error))?;
    let unusable = |error| TlsError::Unusable { path: files.certificate.clone(), error };
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)
}

/// A client's TLS: it trusts the certificates that are signed by this CA, in PEM.
pub fn client(ca: &[u8]) -> Result<ClientConfig, TlsError> {
    let ca_error = |error: String| TlsError::Ca { error };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        let certificate = certificate.map_err(|error| ca_error(error.to_string()))?;
        roots.add(certificate).map_err(|error| ca_error(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(ca_error("there is no certificate in it".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| ca_error(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Unreadable { path: path.to_owned(), error: error.to_string() }
}

/// Keeps `config` at what the files have. Files that cannot be read change nothing: they are read again, and the problem is logged once.
/// `outcome` gets for each reading whether it gave a certificate.
pub async fn follow(files: CertificateFiles, config: watch::Sender<Option<Arc<ServerConfig>>>, outcome: impl Fn(bool)) {
    let mut logged = None;
    loop {
        let read = files.clone();
        // It is a runtime that ends that runs no more of these.
        let Ok(read) = tokio::task::spawn_blocking(move || server(&read)).await else { return };
        outcome(read.is_ok());
        match read {
            Ok(new) => {
                config.send_replace(Some(Arc::new(new)));
                logged = None;
            }
            Err(error) => {
                let error = error.to_string();
                if logged.as_ref() != Some(&error) {
                    let state =
                        if config.borrow().is_some() { "the former certificate is used" } else { "nobody is answered" };
                    tracing::warn!("--fleet-bind: {error}; {state} until the files can be read");
                    logged = Some(error);
                }
            }
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_missing_or_empty_are_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let files = CertificateFiles { certificate: dir.path().join("tls.crt"), key: dir.path().join("tls.key") };
        assert!(server(&files).expect_err("missing").to_string().contains("tls.crt"));
        std::fs::write(&files.certificate, "").expect("writable");
        std::fs::write(&files.key, "").expect("writable");
        assert!(server(&files).expect_err("empty").to_string().contains("tls.key"));
        assert!(client(b"").expect_err("empty").to_string().contains("no certificate"));
    }
}
