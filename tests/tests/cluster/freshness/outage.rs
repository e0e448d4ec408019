//! The API freezes, goes away, or answers others only.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::cluster::Way;

use super::scene::{ASK_EVERY, RECOVERY_LIMIT, Scene};

/// How long an API is away that is away for long: many rounds of everything the agent tries meanwhile.
const LONG: Duration = Duration::from_secs(40);

/// A load balancer keeps this node: the fault is not the node's.
fn healthy(agent: &Agent) -> Result<()> {
    let (status, body) = agent.health("/healthz")?;
    ensure!(status == 200, "/healthz {status}: {body}");
    Ok(())
}

/// Stays so for a while: `/readyz` red, `/healthz` green, the age rising.
fn outage(scene: &mut Scene, length: Duration) -> Result<()> {
    let (start, mut age) = (Instant::now(), scene.age()?);
    while start.elapsed() < length {
        scene.serves()?;
        healthy(&scene.agent)?;
        let (status, body) = scene.agent.health("/readyz")?;
        ensure!(status == 503, "/readyz is {status} while the API is away: {body}");
        let now = scene.age()?;
        ensure!(now > age, "the age does not rise: {age}, then {now}");
        age = now;
        std::thread::sleep(ASK_EVERY * 10);
    }
    println!("after {:.1?} of outage the last proof is {age:.1} s old", start.elapsed());
    Ok(())
}

#[test]
fn a_frozen_api_server_reddens_readyz_alone_and_is_followed_again() -> Result<()> {
    let mut scene = Scene::new("frozen")?;
    scene.cluster.freeze()?;
    let (red, _) = scene.until("/readyz", 503, RECOVERY_LIMIT, healthy)?;
    outage(&mut scene, Duration::from_secs(10))?;
    scene.cluster.thaw()?;
    let (green, _) = scene.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("API server frozen: /readyz red after {red:.1?}; green {green:.1?} after it goes on");
    scene.follows()
}

#[test]
fn an_api_server_that_is_away_for_long_reddens_readyz_alone_and_is_followed_again() -> Result<()> {
    let mut scene = Scene::new("away")?;
    scene.cluster.stop();
    let (red, _) = scene.until("/readyz", 503, RECOVERY_LIMIT, healthy)?;
    outage(&mut scene, LONG)?;
    scene.cluster.restart()?;
    let (green, _) = scene.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("API server stopped: /readyz red after {red:.1?}; green {green:.1?} after it is back");
    scene.follows()
}

/// The answers are lost on the connections that there are, without an error, and the API answers others.
#[test]
fn a_wedged_watch_reddens_healthz_until_it_is_replaced() -> Result<()> {
    let mut scene = Scene::new("wedged")?;
    let pid = scene.agent.pid();
    ensure!(scene.gate.set_old(Way::AnswersLost) > 0, "nothing was connected");
    scene.cluster.put_pods("web", &[&scene.stage.backends[0], &scene.stage.backends[1]])?;
    let (red, body) = scene.until("/healthz", 503, RECOVERY_LIMIT, |_| Ok(()))?;
    ensure!(body.contains("watch"), "it is not said what is wrong: {body}");
    let (green, _) = scene.until("/healthz", 200, RECOVERY_LIMIT, |_| Ok(()))?;
    scene.until("/readyz", 200, RECOVERY_LIMIT, healthy)?;
    println!("watch wedged: /healthz red after {red:.1?}; green {green:.1?} later");
    scene.follows()?;
    ensure!(scene.agent.pid() == pid, "it was restarted");
    Ok(())
}
