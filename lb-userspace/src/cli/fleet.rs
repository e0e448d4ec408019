//! `ballast fleet` and `kubectl ballast`: questions to the agents of all nodes, or of one, from wherever the API server can be reached.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio_rustls::rustls::pki_types::ServerName;

use super::output::{Format, print, render, sentence};
use super::progress::Progress;
use super::{colour, pods};
use crate::fleet::agents::{self, Agents};
use crate::fleet::answer::CommandOutput;
use crate::fleet::client::{ANSWER_BYTES_MAX, Asker, SYSDUMP_BYTES_MAX};
use crate::fleet::command::Reading;
use crate::fleet::report::{self, FleetReport};
use crate::fleet::survey::{PAUSE, Survey};
use crate::fleet::{DEFAULT_PORT, SERVER_NAME, tls};

/// Name of this program as a plugin of kubectl.
pub(super) const PLUGIN: &str = "kubectl-ballast";
/// Some nodes are not in sync.
const DIFFERS: u8 = 1;
/// The question cannot be asked.
const FAILED: u8 = 2;
/// How long a command of a node may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(25);
const SYSDUMP_LIMIT: Duration = Duration::from_mins(2);

/// Ask the agents of all nodes, or of one
#[derive(Debug, Parser)]
#[command(name = "kubectl-ballast", bin_name = "kubectl ballast", version, disable_help_subcommand = true)]
pub(super) struct Plugin {
    #[command(flatten)]
    pub arguments: Arguments,
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    access: Access,

    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Show all nodes with version, freshness, lag and digest, and name those that are not in sync; exit code 1 if there are any
    Status(StatusArguments),
    /// List services, backends, drains or connections of one node, as `ballast get` there
    Get(NodeArguments),
    /// Say what would become of a packet on one node, as `ballast explain` there
    Explain(NodeArguments),
    /// Fetch the archive of one node, as `ballast sysdump` there
    Sysdump(SysdumpArguments),
}

/// How the API server and the agents are reached.
#[derive(Debug, Args)]
struct Access {
    /// Credentials and address of the API server [default: as kubectl]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,

    /// Namespace of the agents
    #[arg(long, value_name = "NAME", default_value = "kube-system", global = true)]
    agent_namespace: String,

    /// Labels of the agents' pods
    #[arg(long, value_name = "LABELS", default_value = "app.kubernetes.io/name=ballast", global = true)]
    selector: String,

    /// Port of the agents' --fleet-bind
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, global = true)]
    port: u16,

    /// ServiceAccount whose token is shown to the agents
    #[arg(long, value_name = "NAME", default_value = "ballast-fleet", global = true)]
    service_account: String,

    /// File with a token for the agents, instead of one of --service-account
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,

    /// CA of the agents' certificates, in PEM [default: key ca.crt of the ConfigMap ballast-fleet]
    #[arg(long, value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,

    /// DNS name in the agents' certificates
    #[arg(long, value_name = "NAME", default_value = SERVER_NAME, global = true)]
    tls_server_name: String,
}

#[derive(Debug, Args)]
struct StatusArguments {
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Leave out the nodes that are in sync
    #[arg(long)]
    problems: bool,

    /// How many agents are asked at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,

    /// How many seconds an agent may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

#[derive(Debug, Args)]
struct NodeArguments {
    /// Name of the node
    node: String,

    /// Arguments of the command on that node
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
struct SysdumpArguments {
    /// Name of the node
    node: String,

    /// The archive; `-` is standard output [default: ballast-sysdump-NODE.tar.gz in the current folder]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// `status`: 0 if all nodes are in sync, 1 if some are not. `get` and `explain`: the code of the command. 2: the question cannot be asked.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.context("no runtime").and_then(|runtime| runtime.block_on(ask(arguments)));
    done.unwrap_or_else(|error| {
        eprintln!("ballast: {}", sentence(&error));
        ExitCode::from(FAILED)
    })
}

async fn ask(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let access = &arguments.access;
    let client = access.client().await?;
    let (agents, asker) = tokio::try_join!(access.agents(&client), access.asker(&client))?;
    match &arguments.command {
        FleetCommand::Status(status) => {
            let survey = Survey {
                asker,
                port: access.port,
                concurrency: status.concurrency.into(),
                limit: Duration::from_secs(status.timeout),
                pause: PAUSE,
            };
            if let Some(problem) = &agents.problem {
                eprintln!("ballast: {problem}");
            }
            let progress = Progress::of(status.output, "asking the agents");
            let of = agents.addresses.len();
            let report =
                survey.report(&agents, |answered| progress.say(format!("{answered} of {of} agents asked"))).await;
            drop(progress);
            show(status, &report)
        }
        FleetCommand::Get(node) => command(Reading::Get, access, node, &agents, &asker).await,
        FleetCommand::Explain(NodeArguments { node, arguments }) => {
            let arguments = pods::with_addresses(arguments, async || Ok(client.clone())).await?;
            let question = NodeArguments { node: node.clone(), arguments };
            command(Reading::Explain, access, &question, &agents, &asker).await
        }
        FleetCommand::Sysdump(node) => sysdump(access, node, &agents, &asker).await,
    }
}

fn show(arguments: &StatusArguments, found: &FleetReport) -> anyhow::Result<ExitCode> {
    print(&render(arguments.output, found, |_| colour::states(report::table(found, arguments.problems)))?)?;
    Ok(if found.is_same() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

impl Access {
    async fn client(&self) -> anyhow::Result<Client> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
                Config::from_custom_kubeconfig(read, &options).await.with_context(|| path.display().to_string())?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.context("kubeconfig")?,
            None => Config::infer().await.context("no way to the Kubernetes API: give --kubeconfig FILE")?,
        };
        Client::try_from(config).context("no way to the Kubernetes API")
    }

    async fn agents(&self, client: &Client) -> anyhow::Result<Agents> {
        Ok(agents::find(client, &self.agent_namespace, &self.selector).await?)
    }

    async fn asker(&self, client: &Client) -> anyhow::Result<Asker> {
        let namespace = &self.agent_namespace;
        let ca = async {
            match &self.ca_file {
                Some(path) => read(path),
                None => Ok(agents::ca(client, namespace, CA_CONFIG_MAP).await?),
            }
        };
        let token = async {
            match &self.token_file {
                Some(path) => read(path),
                None => Ok(agents::token(client, namespace, &self.service_account).await?),
            }
        };
        let (ca, token) = tokio::try_join!(ca, token)?;
        let name = self.tls_server_name.clone();
        let name = ServerName::try_from(name).with_context(|| format!("--tls-server-name {}", self.tls_server_name))?;
        Ok(Asker::new(tls::client(ca.as_bytes())?, name, token.trim()))
    }

    fn address(&self, node: &str, agents: &Agents) -> anyhow::Result<SocketAddr> {
        match agents.addresses.get(node) {
            Some(Some(address)) => Ok(SocketAddr::new(*address, self.port)),
            Some(None) => bail!("the agent of node {node} has no address yet, or ends: ask again in a moment"),
            None => bail!("no agent runs on a node {node}: `kubectl get nodes` shows their names"),
        }
    }
}

/// The ConfigMap with the CA of the agents.
const CA_CONFIG_MAP: &str = "ballast-fleet";

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

async fn command(
    reading: Reading,
    access: &Access,
    node: &NodeArguments,
    agents: &Agents,
    asker: &Asker,
) -> anyhow::Result<ExitCode> {
    // The node refuses it, too; here the answer comes at once.
    reading.check(&node.arguments)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(node.arguments.iter().map(|argument| ("arg", argument)));
    let path = format!("{}?{}", reading.path(), query.finish());
    let address = access.address(&node.node, agents)?;
    let progress = Progress::start(&format!("asking the agent of node {}", node.node));
    let body = asker.ask(address, &path, COMMAND_LIMIT, ANSWER_BYTES_MAX).await;
    drop(progress);
    let body = body?;
    let output: CommandOutput = serde_json::from_slice(&body).context("the agent's answer is not understood")?;
    eprint!("{}", output.stderr);
    print(&output.stdout)?;
    Ok(ExitCode::from(output.exit_code))
}

async fn sysdump(
    access: &Access,
    arguments: &SysdumpArguments,
    agents: &Agents,
    asker: &Asker,
) -> anyhow::Result<ExitCode> {
    let address = access.address(&arguments.node, agents)?;
    let progress = Progress::start(&format!("fetching the archive of node {}", arguments.node));
    let archive = asker.ask(address, Reading::Sysdump.path(), SYSDUMP_LIMIT, SYSDUMP_BYTES_MAX).await;
    drop(progress);
    let archive = archive?;
    let file = arguments.file.clone().unwrap_or_else(|| format!("ballast-sysdump-{}.tar.gz", arguments.node).into());
    if file == Path::new("-") {
        std::io::stdout().lock().write_all(&archive).context("cannot write the archive")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut open = std::fs::File::options();
    open.write(true).create_new(true);
    // What it holds is for those who may read the tables.
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    let mut made = open.open(&file).with_context(|| format!("cannot make {}", file.display()))?;
    made.write_all(&archive).with_context(|| format!("cannot write {}", file.display()))?;
    print(&format!("{}\n", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_plugin_takes_what_it_documents() {
        Plugin::command().debug_assert();
        for good in [
            "status",
            "status --problems -o json --concurrency 256 --timeout 10",
            "--context prod status",
            "status --context prod --agent-namespace ballast",
            "get n1 services -A -o wide",
            "explain n1 10.0.0.1 svc/demo/web",
            "explain n1 pod/demo/client pod/demo/web-0:80 -o json",
            "sysdump n1 -",
        ] {
            assert!(Plugin::try_parse_from([PLUGIN].into_iter().chain(good.split(' '))).is_ok(), "{good}");
        }
        assert!(Plugin::try_parse_from([PLUGIN, "audit", "n1"]).is_err(), "it only reads");
        let parsed = Plugin::try_parse_from("kubectl-ballast get n1 services -n demo".split(' ')).expect("good");
        let FleetCommand::Get(node) = parsed.arguments.command else { panic!("get") };
        assert_eq!(node.arguments, ["services", "-n", "demo"], "they are the node's");
    }
}
