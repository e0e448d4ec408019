//! The API freezes, goes away, answers others only, or does not know the agent any more.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_seed::short_or_long;
use lb_tests::agent::{Agent, SOON};
use lb_tests::cluster::{ClientCa, Condition};
use lb_tests::peers::eventually;

use super::scenario::{ASK_EVERY, Scenario};

const DAY: Duration = Duration::from_hours(24);

/// A load balancer keeps this node: the fault is not the node's.
fn healthy(agent: &Agent) -> Result<()> {
    for path in ["/healthz", "/livez"] {
        let (status, body) = agent.health(path)?;
        ensure!(status == 200, "{path} {status}: {body}");
    }
    Ok(())
}

/// Stays so for a while: `/readyz` red, `/healthz` green, the age rising.
fn outage(scenario: &mut Scenario, length: Duration) -> Result<()> {
    let (start, mut age) = (Instant::now(), scenario.age()?);
    while start.elapsed() < length {
        scenario.serves()?;
        healthy(&scenario.agent)?;
        let (status, body) = scenario.agent.health("/readyz")?;
        ensure!(status == 503, "/readyz is {status} while the API is away: {body}");
        let now = scenario.age()?;
        ensure!(now > age, "the age does not rise: {age}, then {now}");
        age = now;
        std::thread::sleep(ASK_EVERY * 10);
    }
    ensure!(
        age >= length.as_secs_f64() / 2.0,
        "after {:.1?} of outage the last proof is {age:.1} s old",
        start.elapsed()
    );
    for (metric, value) in [("ballast_source_stale", 1.0), ("ballast_source_wedged", 0.0)] {
        ensure!(scenario.agent.metric(metric, "") == Some(value), "{}", scenario.agent.metrics()?);
    }
    Ok(())
}

/// One agent sees them all, one after the other, and is not restarted: one scenario takes half a minute to stand.
#[test]
fn each_fault_of_the_api_is_shown_and_the_api_is_followed_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (key, certificate) = (folder.path().join("client.key"), folder.path().join("client.crt"));
    let ca = ClientCa::new("clients")?;
    ca.issue(&key, &certificate, DAY)?;
    let mut scenario = Scenario::new("outage", |cluster| cluster.kubeconfig_by(&ca, &key, &certificate))?;
    let pid = scenario.agent.pid();
    frozen(&mut scenario).context("a frozen API server")?;
    wedged(&mut scenario).context("a wedged watch")?;
    let issue = |valid| ca.issue(&key, &certificate, valid);
    expired(&mut scenario, issue).context("an expired client certificate")?;
    ensure!(scenario.agent.pid() == pid, "it was restarted");
    away(&mut scenario).context("an API server that is away for long")
}

fn frozen(scenario: &mut Scenario) -> Result<()> {
    scenario.cluster.freeze()?;
    let (red, _) = scenario.until("/readyz", 503, healthy)?;
    outage(scenario, Duration::from_secs(short_or_long(3, 10)))?;
    scenario.cluster.thaw()?;
    let (green, _) = scenario.until("/readyz", 200, healthy)?;
    println!("API server frozen: /readyz red after {red:.1?}; green {green:.1?} after it goes on");
    scenario.follows()
}

/// An agent that starts meanwhile serves by the tables that are there.
fn away(scenario: &mut Scenario) -> Result<()> {
    scenario.cluster.stop();
    let (red, _) = scenario.until("/readyz", 503, healthy)?;
    // Many rounds of everything that the agent tries meanwhile.
    outage(scenario, Duration::from_secs(short_or_long(5, 40)))?;
    scenario.agent.launch()?;
    let first = eventually("an answer", SOON, || scenario.agent.health("/healthz").ok());
    ensure!(first.0 == 200 && scenario.agent.health("/readyz")?.0 == 503, "{first:?}");
    scenario.cluster.restart()?;
    let (green, _) = scenario.until("/readyz", 200, healthy)?;
    println!("API server stopped: /readyz red after {red:.1?}; green {green:.1?} after it is back");
    scenario.follows()
}

/// Its rotation came too late.
fn expired(scenario: &mut Scenario, issue: impl Fn(Duration) -> Result<()>) -> Result<()> {
    let valid = Duration::from_secs(short_or_long(4, 10));
    issue(valid)?;
    let (red, body) = scenario.until("/readyz", 503, healthy)?;
    // The file has whole seconds.
    ensure!(red + Duration::from_secs(2) >= valid, "{red:.1?} after it was made it was still good: {body}");
    outage(scenario, Duration::from_secs(short_or_long(2, 5)))?;
    let (_, body) = scenario.agent.health("/readyz")?;
    ensure!(body.contains("401"), "it is not said what is wrong: {body}");
    let status = String::from_utf8(scenario.agent.cli(&["status"])?.stdout)?;
    ensure!(status.contains("the API answers 401 for"), "{status}");
    // Which resource asks first is the probes' chance.
    let metrics = scenario.agent.metrics()?;
    let counts = |line: &str| line.starts_with("ballast_source_errors_total{") && line.contains("code=\"401\"");
    ensure!(metrics.lines().any(|line| counts(line) && !line.ends_with(" 0.0")), "{metrics}");
    issue(DAY)?;
    let (green, _) = scenario.until("/readyz", 200, healthy)?;
    println!("client certificate expired: /readyz red after {red:.1?}; green {green:.1?} after its replacement");
    scenario.follows()
}

/// The answers are lost on the connections that there are, without an error, and the API answers others.
fn wedged(scenario: &mut Scenario) -> Result<()> {
    ensure!(scenario.proxy.set_old(Condition::AnswersLost) > 0, "nothing was connected");
    scenario.cluster.put_pods("web", &[&scenario.fixture.backends[0], &scenario.fixture.backends[1]])?;
    let (red, body) = scenario.until("/healthz", 503, |_| Ok(()))?;
    ensure!(body.contains("watch"), "it is not said what is wrong: {body}");
    let (green, _) = scenario.until("/healthz", 200, |_| Ok(()))?;
    scenario.until("/readyz", 200, healthy)?;
    let restarts = scenario.agent.metric("ballast_source_watch_restarts_total", "reason=\"missed-events\"");
    ensure!(restarts >= Some(1.0), "{}", scenario.agent.metrics()?);
    println!("watch wedged: /healthz red after {red:.1?}; green {green:.1?} later");
    scenario.follows()
}
