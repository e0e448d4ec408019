//! Client certificates of API users, and who signs them, by `openssl`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Keys are of this kind: quick to make.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

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

    /// What an API server believes whoever shows a certificate of it.
    pub fn certificate(&self) -> PathBuf {
        self.0.path().join("ca.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("ca.key")
    }

    /// Writes a key and a certificate of it for a user with every right, in place of what these files hold.
    pub fn issue(&self, key: &Path, certificate: &Path) -> Result<()> {
        let path = |name: &str| self.0.path().join(name);
        let (new_key, request, signed) = (path("client.key"), path("client.csr"), path("client.crt"));
        let subject = "/O=system:masters/CN=ballast";
        openssl(&["req", "-new", "-subj", subject], &KEY, &[("-keyout", &new_key), ("-out", &request)])?;
        // With an extension it is of version 3, as TLS asks for.
        let extensions = path("client.ext");
        std::fs::write(&extensions, "extendedKeyUsage = clientAuth\n")?;
        let (ca, ca_key) = (self.certificate(), self.key());
        let signed_by =
            [("-in", &request), ("-CA", &ca), ("-CAkey", &ca_key), ("-extfile", &extensions), ("-out", &signed)];
        openssl(&["x509", "-req", "-days", "1", "-CAcreateserial"], &[], &signed_by)?;
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
