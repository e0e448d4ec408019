//! Client certificates of API users, and who signs them, by `openssl`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;

/// Keys are of this kind: quick to make.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// Of `openssl ca`, which alone signs for less than a day. With an extension a certificate is of version 3, as TLS asks for.
const SIGNING: &str = "[ca]
default_ca = own
[own]
dir = .
database = $dir/issued
serial = $dir/serial
new_certs_dir = $dir
default_md = sha256
policy = named
x509_extensions = client
unique_subject = no
[named]
organizationName = supplied
commonName = supplied
[client]
extendedKeyUsage = clientAuth
";

/// A certificate authority; its files are in a folder of its own.
#[derive(Debug)]
pub struct ClientCa(tempfile::TempDir);

impl ClientCa {
    pub fn new(name: &str) -> Result<Self> {
        let this = Self(tempfile::tempdir()?);
        let subject = format!("/CN={name}");
        let certificate = this.certificate();
        openssl(
            &["req", "-x509", "-days", "1", "-subj", &subject],
            &KEY,
            &[("-keyout", &this.key()), ("-out", &certificate)],
        )?;
        Ok(this)
    }

    /// The authority's own certificate: an API server believes every client with one of this authority.
    pub fn certificate(&self) -> PathBuf {
        self.0.path().join("ca.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("ca.key")
    }

    /// Writes a key and a certificate of it for a user with every right, in place of what these files hold. It expires after `valid`,
    /// in whole seconds.
    pub fn issue(&self, key: &Path, certificate: &Path, valid: Duration) -> Result<()> {
        let path = |name: &str| self.0.path().join(name);
        let (new_key, request, signed) = (path("client.key"), path("client.csr"), path("client.crt"));
        let subject = "/O=system:masters/CN=ballast";
        openssl(&["req", "-new", "-subj", subject], &KEY, &[("-keyout", &new_key), ("-out", &request)])?;
        let (config, ca, ca_key) = (path("signing.cnf"), self.certificate(), self.key());
        std::fs::write(&config, SIGNING.replace("dir = .", &format!("dir = {}", self.0.path().display())))?;
        std::fs::write(path("issued"), "")?;
        let expires = (Timestamp::now() + valid).strftime("%Y%m%d%H%M%SZ").to_string();
        let signed_by =
            [("-config", &config), ("-in", &request), ("-cert", &ca), ("-keyfile", &ca_key), ("-out", &signed)];
        openssl(&["ca", "-batch", "-notext", "-rand_serial", "-enddate", &expires], &[], &signed_by)?;
        std::fs::copy(new_key, key)?;
        std::fs::copy(signed, certificate)?;
        Ok(())
    }
}

fn openssl(command: &[&str], more: &[&str], files: &[(&str, &PathBuf)]) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(command).args(more);
    for (flag, path) in files {
        openssl.arg(flag).arg(path);
    }
    let output = openssl.output().context("starting `openssl`: install it")?;
    ensure!(output.status.success(), "openssl {command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
