//! An API server that is asked by a cluster IP which nothing serves: the agent is to serve it, and learns Services from there alone.

use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::facts::endpoint;
use super::state::Progress;
use crate::config::Settings;
use lb_model::Protocol;
use lb_plan::plan::{Frontend, ProgrammedState};
use lb_source::SourceStatus;

/// Where Kubernetes takes the last words of a container from, if nothing else is said.
pub(super) const TERMINATION_LOG: &str = "/dev/termination-log";
/// An API that answers does so in this time.
const PATIENCE: Duration = Duration::from_secs(3);
const REMEDY: &str = "set --api-server (`api-server` in the configuration file) to an address of the API server itself, or of a load balancer before it";

/// What is wrong with the address, where nobody answers there. `None`: it is no cluster IP, or the tables of an agent before this one serve it.
/// `variable`: the environment.
pub(super) fn problem(
    origin: &str,
    settings: &Settings,
    programmed: &ProgrammedState,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let of_pods = of_pods(variable);
    let frontends = programmed.frontends();
    origin.split(", ").find_map(|url| {
        let (host, port) = endpoint(url)?;
        let address: IpAddr = host.parse().ok()?;
        let frontend = Frontend { address, port, protocol: Protocol::Tcp };
        let why = match frontends.get(&frontend) {
            Some(entry) if entry.slot_count > 0 => return None,
            Some(_) => "the tables have it without a backend".to_owned(),
            None if of_pods == Some(address) => "that of the Service kubernetes, as pods get it".to_owned(),
            None => format!("it is in {}", settings.service_cidr.iter().find(|network| network.contains(&address))?),
        };
        let what =
            "which this agent is to serve. Nothing serves it yet, and the agent learns of Services from there alone";
        Some(format!("the API server's address {address} is a cluster IP ({why}), {what}; {REMEDY}"))
    })
}

/// The cluster IP of the Service `kubernetes` in the environment of a container. `KUBERNETES_SERVICE_HOST` may have been set to another address;
/// the kubelet sets `KUBERNETES_PORT` as well.
fn of_pods(variable: impl Fn(&str) -> Option<String>) -> Option<IpAddr> {
    let host = match variable("KUBERNETES_PORT") {
        Some(url) => url.parse::<http::Uri>().ok()?.host()?.trim_matches(['[', ']']).to_owned(),
        None => variable("KUBERNETES_SERVICE_HOST")?,
    };
    host.parse().ok()
}

/// Says the problem in the log, the report and the termination message once the API has given no answer for a while, until it does.
pub(super) async fn watch(
    problem: String,
    mut source: watch::Receiver<SourceStatus>,
    progress: watch::Sender<Progress>,
    termination_log: &Path,
) {
    let answers = |status: &SourceStatus| status.synced || status.api.is_some_and(|reach| reach.reachable);
    if timeout(PATIENCE, source.wait_for(answers)).await.is_ok() {
        return;
    }
    tracing::error!("{problem}");
    leave(termination_log, &problem);
    progress.send_modify(|progress| progress.api_address = Some(problem));
    if source.wait_for(answers).await.is_ok() {
        tracing::info!("the API server answers at its cluster IP now");
        leave(termination_log, "");
        progress.send_modify(|progress| progress.api_address = None);
    }
}

/// Leaves the words for Kubernetes, where it made the file.
fn leave(termination_log: &Path, words: &str) {
    let written = File::options().write(true).truncate(true).open(termination_log);
    if let Err(error) = written.and_then(|mut file| file.write_all(words.as_bytes())) {
        tracing::debug!(file = %termination_log.display(), "no termination message: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Options, Source};
    use lb_plan::plan::Capacities;
    use lb_source::Reach;
    use tokio::time::Instant;

    fn settings(service_cidr: &str) -> Settings {
        let service_cidr = Some(vec![service_cidr.parse().expect("valid")]);
        Options { source: Some(Source::Kube), service_cidr, ..Options::default() }.settle(Some("n1")).expect("complete")
    }

    fn said(origin: &str, service_cidr: &str, environment: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| environment.iter().find(|one| one.0 == name).map(|one| one.1.to_owned());
        problem(origin, &settings(service_cidr), &ProgrammedState::new(Capacities::all(1)), variable)
    }

    #[test]
    fn an_address_is_a_cluster_ip_by_the_environment_or_by_a_service_cidr() {
        let (origin, other) = ("https://10.96.0.1/", "198.18.0.0/15");
        let host = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        let found = said(origin, other, &[host]).expect("it is what pods get");
        assert!(found.starts_with("the API server's address 10.96.0.1 is a cluster IP") && found.ends_with(REMEDY));
        assert!(said(origin, "10.96.0.0/12", &[]).expect("by the CIDR").contains("(it is in 10.96.0.0/12)"));
        assert!(said("https://[fd00:96::1]/", other, &[("KUBERNETES_PORT", "tcp://[fd00:96::1]:443")]).is_some());
        // The second of two addresses.
        assert!(said("https://192.0.2.1:6443/, https://10.96.0.1/", other, &[host]).is_some());
        assert_eq!(said("https://192.0.2.1:6443/", other, &[host]), None);
        assert_eq!(said("https://api.example/", other, &[host]), None);
        assert_eq!(said(origin, other, &[]), None);
        // Somebody has set the host in the container's environment to an address of the API server itself.
        let set = [("KUBERNETES_SERVICE_HOST", "192.0.2.1"), ("KUBERNETES_PORT", "tcp://10.96.0.1:443")];
        assert_eq!(said("https://192.0.2.1/", other, &set), None);
    }

    fn reached(reachable: bool) -> SourceStatus {
        SourceStatus { api: Some(Reach { reachable, since: Instant::now() }), ..SourceStatus::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_said_within_five_seconds_and_until_there_is_an_answer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("termination-log");
        std::fs::write(&file, "").expect("writable");
        let words = || std::fs::read_to_string(&file).expect("readable");
        let (status, progress) = (watch::Sender::new(SourceStatus::default()), watch::Sender::new(Progress::default()));
        let mut shown = progress.subscribe();
        let (source, log) = (status.subscribe(), file.clone());
        let start = Instant::now();
        let task = tokio::spawn(async move { watch("bad".into(), source, progress, &log).await });
        status.send_replace(reached(false));
        shown.wait_for(|progress| progress.api_address.as_deref() == Some("bad")).await.expect("said");
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(words(), "bad");
        status.send_replace(reached(true));
        shown.wait_for(|progress| progress.api_address.is_none()).await.expect("over");
        task.await.expect("no panic");
        assert_eq!(words(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_said_where_the_api_answers_or_no_file_is_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("termination-log");
        let progress = watch::Sender::new(Progress::default());
        watch("bad".into(), watch::Sender::new(reached(true)).subscribe(), progress.clone(), &file).await;
        assert!(progress.borrow().api_address.is_none());
        leave(&file, "bad");
        assert!(!file.exists(), "Kubernetes makes it");
    }
}
