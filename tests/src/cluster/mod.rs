//! A real Kubernetes API: kube-apiserver and etcd, started and stopped by the test.
//!
//! The binaries come from `KUBEBUILDER_ASSETS`, else from `target/tools`, which `cargo xtask setup` fills. There are no controllers and no kubelets: endpoint slices are made by
//! the test. On loopback nothing of this needs root.

mod client_certificate;
mod faulty_proxy;
mod hosted;
mod kube_proxy;
pub mod manifests;
pub mod objects;
pub mod odd_objects;
mod packet_drop;
mod process;
mod store;
pub mod stub;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

pub use client_certificate::ClientCa;
pub use faulty_proxy::{Condition, FaultyProxy};
pub use hosted::Hosted;
pub use kube_proxy::KubeProxy;
pub use packet_drop::PacketDrop;
pub use process::Process;
pub use store::Backup;
use store::Store;

use crate::topology::{NetNs, SERVICE_NET4, SERVICE_NET6};

/// How long a server may take until it answers. kube-apiserver needs about 5 s of CPU time.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long a test waits for the agent or a source to follow. Long: a watch that lost its server pauses up to 30 s.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(90);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How long one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// How often a start is tried with other ports, when someone took them first.
const ATTEMPTS: u32 = 3;
/// Ports of the servers. Those of a process begin so many after those of the process before it.
const PORTS_FIRST: u16 = 12_000;
const PORTS_COUNT: u32 = 8_000;
const PORTS_APART: u32 = 97;
/// The token of the one user, a member of `system:masters`. Known to everyone who can read this: the server lives for a test.
const TOKEN: &str = "ballast-tests";

/// An API server with its store; dropped, both are killed and their data is removed.
#[derive(Debug)]
pub struct ApiServer {
    // Dropped in this order: the server before its store, the data last.
    server: Option<Process>,
    store: Store,
    options: Options,
    directory: tempfile::TempDir,
}

/// Where it listens, and in which namespace.
#[derive(Clone, Debug)]
struct Options {
    at: SocketAddr,
    netns: Option<NetNs>,
}

impl ApiServer {
    /// On loopback, in the namespace of the test.
    pub async fn start() -> Result<Self> {
        Self::start_anywhere(Ipv4Addr::LOCALHOST.into(), None).await
    }

    /// In `netns`, at one of its addresses: of IPv6 in a cluster that has no IPv4. A client in another namespace must be routed there.
    pub async fn start_in(netns: &NetNs, address: IpAddr) -> Result<Self> {
        Self::start_anywhere(address, Some(netns.clone())).await
    }

    async fn start_anywhere(address: IpAddr, netns: Option<NetNs>) -> Result<Self> {
        let mut error = None;
        for _ in 0..ATTEMPTS {
            match Self::start_at(address, netns.as_ref()).await {
                Ok(this) => return Ok(this),
                Err(failure) => error = Some(failure),
            }
        }
        Err(error.context("no attempt was made")?)
    }

    async fn start_at(address: IpAddr, netns: Option<&NetNs>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("blt-cluster-").tempdir()?;
        let at = SocketAddr::new(address, free_port(address, netns)?);
        // A host with an address of IPv6 may have none of IPv4.
        let local: IpAddr = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let (store_at, peer_at) = (free_port(local, netns)?, free_port(local, netns)?);
        let store_at = SocketAddr::new(local, store_at);
        let store = Store::start(directory.path(), store_at, SocketAddr::new(local, peer_at), netns)?;
        let options = Options { at, netns: netns.cloned() };
        fs::write(directory.path().join("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))?;
        let mut this = Self { server: None, store, options, directory };
        this.believe(&ClientCa::new("nobody's")?)?;
        this.launch().await?;
        Ok(this)
    }

    /// File for `--kubeconfig`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig.yaml")
    }

    /// A kubeconfig with a client certificate, which the server believes while [`Self::believe`] says so. The files may be written anew.
    pub fn kubeconfig_by(&self, key: &Path, certificate: &Path) -> Result<PathBuf> {
        let path = self.directory.path().join("by-certificate.yaml");
        let named = format!("client-certificate: {}\n    client-key: {}", certificate.display(), key.display());
        let text = fs::read_to_string(self.kubeconfig())?;
        fs::write(&path, text.replace(&format!("token: {TOKEN}"), &named))?;
        Ok(path)
    }

    /// From now on the server believes certificates that this one signed, and no others. It watches the file.
    pub fn believe(&self, ca: &ClientCa) -> Result<()> {
        let new = self.directory.path().join("clients.new");
        fs::copy(ca.certificate(), &new)?;
        Ok(fs::rename(new, clients(self.directory.path()))?)
    }

    /// A kubeconfig of another user, who has only the rights that are bound to the name.
    pub fn kubeconfig_as(&self, user: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(format!("{}.yaml", user.replace([':', '/'], "-")));
        let text = fs::read_to_string(self.kubeconfig())?;
        fs::write(&path, text.replace("  user:\n", &format!("  user:\n    as: {user}\n")))?;
        Ok(path)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.options.at
    }

    /// Where its store listens, for those that put more objects there than the server would take in a reasonable time.
    pub fn store_address(&self) -> SocketAddr {
        self.store.address()
    }

    /// A client with every right. It connects from the thread that polls it: that one must be able to reach the server.
    pub async fn client(&self) -> Result<Client> {
        let read = Kubeconfig::read_from(self.kubeconfig())?;
        let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        config.connect_timeout = Some(ASK_LIMIT);
        config.read_timeout = Some(START_LIMIT);
        Ok(Client::try_from(config)?)
    }

    /// Kills the server and leaves its store running: from outside, an API that is away.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Starts the server again with another certificate, signed by itself as the first one. The kubeconfig stays as it is; the file
    /// of the CA that it names has the new one.
    pub async fn rotate_certificate(&mut self) -> Result<()> {
        self.stop();
        fs::remove_dir_all(self.directory.path().join("certs"))?;
        self.launch().await
    }

    /// Starts the server again, at the same address, over the same store.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop();
        self.launch().await
    }

    /// Stops the server as it is: its connections stay open, new ones are accepted by the kernel, and nothing is answered.
    pub fn freeze(&self) -> Result<()> {
        self.server.as_ref().context("the server does not run")?.freeze()
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.server.as_ref().context("the server does not run")?.thaw()
    }

    /// Makes the store forget all versions but the newest, and the server what it remembered of them. A client that asks for changes since an older
    /// version gets 410 Gone.
    pub async fn forget(&mut self) -> Result<()> {
        self.store.compact()?;
        self.restart().await
    }

    /// What the store holds now.
    pub fn back_up(&self) -> Result<Backup> {
        self.store.back_up()
    }

    /// Takes the store back to what it was, as a disaster recovery does, and starts the server again over it.
    pub async fn roll_back(&mut self, backup: &Backup) -> Result<()> {
        self.stop();
        self.store.roll_back(backup)?;
        self.store.settle()?;
        self.launch().await
    }

    /// The end of what the server said.
    pub fn log(&self) -> String {
        self.server.as_ref().map(Process::tail).unwrap_or_default()
    }

    async fn launch(&mut self) -> Result<()> {
        let command = server_command(self.directory.path(), self.options.at, self.store.address())?;
        let log = self.directory.path().join("kube-apiserver.log");
        let server = Process::start(command, &log, self.options.netns.as_ref())?;
        let start = Instant::now();
        loop {
            server.check()?;
            match self.is_ready().await {
                Ok(()) => break,
                Err(error) if start.elapsed() > START_LIMIT => {
                    bail!("kube-apiserver is not ready after {START_LIMIT:?}: {error:#}\n{}", server.tail());
                }
                Err(_) => tokio::time::sleep(ASK_EVERY).await,
            }
        }
        self.server = Some(server);
        Ok(())
    }

    async fn is_ready(&self) -> Result<()> {
        // The server makes its certificate at its first start.
        let certificate = self.directory.path().join("certs/apiserver.crt");
        fs::metadata(&certificate).context("no certificate yet")?;
        let text = kubeconfig_text(self.options.at, &certificate);
        // Never half a file: an agent may be reading it.
        let new = self.directory.path().join("kubeconfig.new");
        fs::write(&new, text)?;
        fs::rename(new, self.kubeconfig())?;
        let client = self.client().await?;
        let ready = http::Request::get("/readyz").body(Vec::new())?;
        tokio::time::timeout(ASK_LIMIT, client.request_text(ready)).await??;
        // Ready does not yet mean that the namespace that everything lives in was made.
        Api::<Namespace>::all(client).get("default").await?;
        Ok(())
    }
}

/// The file of those that sign client certificates.
fn clients(directory: &Path) -> PathBuf {
    directory.join("clients.crt")
}

fn server_command(directory: &Path, at: SocketAddr, store: SocketAddr) -> Result<Command> {
    let certificates = directory.join("certs");
    let key = certificates.join("apiserver.key").display().to_string();
    // The server wants its own family first.
    let service_nets = if at.is_ipv4() { format!("{SERVICE_NET4},{SERVICE_NET6}") } else { SERVICE_NET6.to_owned() };
    let mut command = Command::new(binary("kube-apiserver")?);
    command
        .arg(format!("--etcd-servers=http://{store}"))
        .arg(format!("--bind-address={}", at.ip()))
        .arg(format!("--advertise-address={}", at.ip()))
        .arg(format!("--secure-port={}", at.port()))
        .arg(format!("--cert-dir={}", certificates.display()))
        .arg(format!("--service-cluster-ip-range={service_nets}"))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        // Its own serving key also signs tokens, of which the tests use none.
        .arg(format!("--service-account-signing-key-file={key}"))
        .arg(format!("--service-account-key-file={key}"))
        .arg(format!("--token-auth-file={}", directory.join("tokens.csv").display()))
        .arg(format!("--client-ca-file={}", clients(directory).display()))
        .arg("--authorization-mode=RBAC")
        .arg("--allow-privileged=true")
        // There is no controller that would make the service accounts that this plugin asks for.
        .arg("--disable-admission-plugins=ServiceAccount");
    Ok(command)
}

/// The program, from `KUBEBUILDER_ASSETS`, else where `cargo xtask setup` puts it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let path = set("KUBEBUILDER_ASSETS").unwrap_or_else(tools).join(name);
    if !path.is_file() {
        bail!("{} is missing: run `cargo xtask setup`, or set KUBEBUILDER_ASSETS to a folder with it", path.display());
    }
    Ok(path)
}

/// The folder that `cargo xtask setup` fills with links to programs.
pub fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools")
}

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A port that was free a moment ago, below those that the kernel gives to others: a server that starts again finds it free, too.
fn free_port(address: IpAddr, netns: Option<&NetNs>) -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let first = std::process::id().wrapping_mul(PORTS_APART);
    for _ in 0..PORTS_COUNT {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS_COUNT;
        let port = PORTS_FIRST + u16::try_from(offset)?;
        let bind = || TcpListener::bind((address, port));
        if netns.map_or_else(bind, |netns| netns.run(bind)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port at {address}")
}

fn kubeconfig_text(at: SocketAddr, certificate: &Path) -> String {
    let certificate = certificate.display();
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: tests
  cluster:
    server: https://{at}
    certificate-authority: {certificate}
users:
- name: admin
  user:
    token: {TOKEN}
contexts:
- name: tests
  context:
    cluster: tests
    user: admin
current-context: tests
"
    )
}
