//! The API freezes, goes away, answers others only, or does not know the agent any more.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::cluster::{ClientCa, Condition};

use super::scenario::{ASK_EVERY, RECOVERY_LIMIT, Scenario};

/// How long an API is away that is away for long: many rounds of everything the agent tries meanwhile.
const LONG: Duration = Duration::from_secs(40);

const DAY: Duration = Duration::from_hours(24);
/// Of a certificate that expires in the test.
const VALID: Duration = Duration::from_secs(10);

/// A load balancer keeps this node: the fault is not the node's.
fn healthy(agent: &Agent) -> Result<()> {
    let (status, body) = agent.health("/healthz")?;
    ensure!(status == 200, "/healthz {status}: {body}");
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
    Ok(())
}

#[test]
fn a_frozen_api_server_reddens_readyz_alone_and_is_followed_again() -> Result<()> {
    let mut scenario = Scenario::new("frozen")?;
    scenario.cluster.freeze()?;
    let (red, _) = scenario.until("/readyz", 503, RECOVERY_LIMIT, healthy)?;
    outage(&mut scenario, Duration::from_secs(10))?;
    scenario.cluster.thaw()?;
    let (green, _) = scenario.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("API server frozen: /readyz red after {red:.1?}; green {green:.1?} after it goes on");
    scenario.follows()
}

#[test]
fn an_api_server_that_is_away_for_long_reddens_readyz_alone_and_is_followed_again() -> Result<()> {
    let mut scenario = Scenario::new("away")?;
    scenario.cluster.stop();
    let (red, _) = scenario.until("/readyz", 503, RECOVERY_LIMIT, healthy)?;
    outage(&mut scenario, LONG)?;
    scenario.cluster.restart()?;
    let (green, _) = scenario.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("API server stopped: /readyz red after {red:.1?}; green {green:.1?} after it is back");
    scenario.follows()
}

/// Its rotation came too late.
#[test]
fn an_expired_client_certificate_reddens_readyz_alone_until_it_is_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (key, certificate) = (folder.path().join("client.key"), folder.path().join("client.crt"));
    let ca = ClientCa::new("clients")?;
    ca.issue(&key, &certificate, DAY)?;
    let mut scenario = Scenario::by("expired", |cluster| cluster.kubeconfig_by(&ca, &key, &certificate))?;
    let pid = scenario.agent.pid();
    ca.issue(&key, &certificate, VALID)?;
    let (red, body) = scenario.until("/readyz", 503, VALID + RECOVERY_LIMIT, healthy)?;
    // The file has whole seconds.
    ensure!(red + Duration::from_secs(2) >= VALID, "{red:.1?} after it was made it was still good: {body}");
    outage(&mut scenario, Duration::from_secs(5))?;
    let (_, body) = scenario.agent.health("/readyz")?;
    ensure!(body.contains("401"), "it is not said what is wrong: {body}");
    let status = String::from_utf8(scenario.agent.cli(&["status"])?.stdout)?;
    ensure!(status.contains("the API answers 401 for"), "{status}");
    let errors = scenario.agent.metric("ballast_source_errors_total", "resource=\"services\",code=\"401\"");
    ensure!(errors >= Some(1.0), "{}", scenario.agent.metrics()?);
    ca.issue(&key, &certificate, DAY)?;
    let (green, _) = scenario.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("client certificate expired: /readyz red after {red:.1?}; green {green:.1?} after its replacement");
    ensure!(scenario.agent.pid() == pid, "it was restarted");
    scenario.follows()
}

/// The answers are lost on the connections that there are, without an error, and the API answers others.
#[test]
fn a_wedged_watch_reddens_healthz_until_it_is_replaced() -> Result<()> {
    let mut scenario = Scenario::new("wedged")?;
    let pid = scenario.agent.pid();
    ensure!(scenario.proxy.set_old(Condition::AnswersLost) > 0, "nothing was connected");
    scenario.cluster.put_pods("web", &[&scenario.fixture.backends[0], &scenario.fixture.backends[1]])?;
    let (red, body) = scenario.until("/healthz", 503, RECOVERY_LIMIT, |_| Ok(()))?;
    ensure!(body.contains("watch"), "it is not said what is wrong: {body}");
    let (green, _) = scenario.until("/healthz", 200, RECOVERY_LIMIT, |_| Ok(()))?;
    scenario.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("watch wedged: /healthz red after {red:.1?}; green {green:.1?} later");
    scenario.follows()?;
    ensure!(scenario.agent.pid() == pid, "it was restarted");
    Ok(())
}
