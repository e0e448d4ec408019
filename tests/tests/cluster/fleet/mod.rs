//! `kubectl ballast` as the manual describes it: a real API server with the rights of deploy/, two agents, and the real plugin. Needs root and BPF.

mod fixture;
mod walkthrough;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lb_tests::cluster::{PacketDrop, SETTLE_LIMIT};
use lb_tests::peers::eventually;
use lb_tests::topology::Node;
use serde_json::json;

use fixture::{Fleet, NAMESPACE, OPERATOR};

/// The line of `status` that names the node's problem.
fn problem(text: &str, node: &Node) -> Option<String> {
    let begins = format!("{}: ", node.node_name());
    text.lines().find(|line| line.starts_with(&begins)).map(str::to_owned)
}

#[test]
fn the_plugin_asks_running_agents_with_the_rights_of_the_manifests() -> Result<()> {
    let fleet = Fleet::new("fleet")?;
    let backend = fleet.nodes[0].pod("backend")?;
    let cluster_ips = fleet.cluster.create_service("web")?;
    fleet.cluster.put_pods("web", &[&backend])?;
    eventually("both nodes are the same", SETTLE_LIMIT, || {
        let (code, text) = fleet.ballast(OPERATOR, &["status"]).ok()?;
        let same = text.lines().filter(|line| line.ends_with("  same")).count();
        (code == Some(0) && same == 2 && text.contains("2 nodes in ")).then_some(())
    });
    one_node_answers(&fleet, &cluster_ips[0].to_string())?;
    a_pod_is_explained_by_its_name(&fleet, &cluster_ips[0].to_string())?;
    others_are_refused(&fleet)?;
    a_node_whose_watch_is_cut_is_named(&fleet)
}

fn one_node_answers(fleet: &Fleet, cluster_ip: &str) -> Result<()> {
    let second = fleet.nodes[1].node_name();
    let (code, text) = fleet.ballast(OPERATOR, &["get", &second, "services", "-n", "default"])?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().any(|line| line.contains("web") && line.contains(cluster_ip)), "{text}");
    let client = fleet.nodes[1].pod("client")?.ips()[0].to_string();
    let (code, text) = fleet.ballast(OPERATOR, &["explain", &second, &client, &format!("{cluster_ip}:80")])?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("default/web"), "{text}");
    let (code, text) = fleet.ballast(OPERATOR, &["get", &second, "services", "--bpffs=/"])?;
    assert!(code == Some(2) && text.contains("--bpffs is not allowed"), "{text}");
    let (code, text) = fleet.ballast(OPERATOR, &["sysdump", &second, "dump.tar.gz"])?;
    assert_eq!(code, Some(0), "{text}");
    let archive = std::fs::File::open(fleet.folder.path().join("dump.tar.gz"))?;
    let mut names = Vec::new();
    for file in tar::Archive::new(flate2::read::GzDecoder::new(archive)).entries()? {
        names.push(file?.path()?.file_name().context("a name")?.to_string_lossy().into_owned());
    }
    for name in ["INDEX.txt", "status.json", "services.json", "metrics.txt"] {
        assert!(names.iter().any(|one| one == name), "{name}: {names:?}");
    }
    Ok(())
}

/// The real API server says which addresses the pod has, to those that may get it: on the node, and from another machine.
fn a_pod_is_explained_by_its_name(fleet: &Fleet, cluster_ip: &str) -> Result<()> {
    let second = fleet.nodes[1].node_name();
    let client = fleet.nodes[1].pod("client")?;
    let object =
        json!({"metadata": {"name": "client"}, "spec": {"containers": [{"name": "client", "image": "client"}]}});
    fleet.run_pod("default", object, &fleet.nodes[1], &client.ips())?;
    let destination = format!("{cluster_ip}:80");
    let ask = || fleet.ballast(OPERATOR, &["explain", &second, "pod/default/client", &destination]);
    let (code, text) = ask()?;
    assert!(code == Some(2) && text.contains("cannot get resource \"pods\""), "{text}");
    let user = format!("--user={OPERATOR}");
    fleet.admin(&["create", "role", "see-pods", "--verb=get", "--resource=pods"])?;
    fleet.admin(&["create", "rolebinding", "see-pods", "--role=see-pods", &user])?;
    let on_node = format!("sudo ballast explain pod/default/client {destination}");
    let on_node = || {
        let output = fleet.shell(&on_node, 1)?.wait_with_output()?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        anyhow::Ok((output.status.code(), text))
    };
    for (code, text) in [ask()?, on_node()?] {
        let begins = format!("PACKET {}", client.ips()[0]);
        let packet = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(packet.into_iter().any(|line| line.starts_with(&begins)), "{text}");
        assert!(code == Some(0) && text.contains("default/web"), "{code:?} {text}");
    }
    let (code, text) = fleet.ballast(OPERATOR, &["explain", &second, "pod/default/no-such-pod", &destination])?;
    assert!(code == Some(2) && text.contains("pod default/no-such-pod"), "{text}");
    Ok(())
}

fn others_are_refused(fleet: &Fleet) -> Result<()> {
    let (code, text) = fleet.ballast("no-rights", &["status"])?;
    assert!(code == Some(2) && text.contains("it needs "), "{text}");
    fleet.admin(&["-n", NAMESPACE, "create", "serviceaccount", "other"])?;
    let ask = |token: &Path, why: &str| {
        let (code, text) = fleet.ballast(OPERATOR, &["status", "--token-file", &token.display().to_string()])?;
        ensure!(code == Some(1) && text.contains("2 do not answer"), "{code:?} {text}");
        for node in &fleet.nodes {
            let problem = problem(&text, node).context("a line of the node")?;
            ensure!(problem.contains(why), "{problem}");
        }
        anyhow::Ok(())
    };
    let audience = Some(lb_userspace::fleet::AUDIENCE);
    ask(
        &fleet.token("other", audience)?,
        "403 Forbidden: system:serviceaccount:kube-system:other may not get /fleet/status",
    )?;
    ask(&fleet.token("ballast-fleet", None)?, "401 Unauthorized: the token is not for the audience ballast.dev/fleet")?;
    let good = fleet.token("ballast-fleet", audience)?;
    let text = std::fs::read_to_string(&good)?;
    let (claims, _) = text.trim().rsplit_once('.').context("a signature")?;
    let forged = fleet.folder.path().join("forged");
    std::fs::write(&forged, format!("{claims}.{}", "A".repeat(342)))?;
    ask(&forged, "401 Unauthorized: the API server does not accept the token")?;
    // The API server takes no token of this audience.
    let refused = fleet.admin(&[
        "get",
        "pods",
        "--kubeconfig=/dev/null",
        "--server",
        &format!("https://{}", fleet.cluster.address()),
        "--insecure-skip-tls-verify",
        "--token",
        text.trim(),
    ]);
    let refused = format!("{:#}", refused.expect_err("a token of another audience"));
    assert!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
    Ok(())
}

fn a_node_whose_watch_is_cut_is_named(fleet: &Fleet) -> Result<()> {
    let [first, second] = &fleet.nodes;
    let _silence = PacketDrop::of_open_connections(second.netns(), fleet.cluster.address())?;
    fleet.cluster.create_service("late")?;
    let problem = eventually("the node is named with the Service", SETTLE_LIMIT, || {
        let (code, text) = fleet.ballast(OPERATOR, &["status"]).ok()?;
        assert!(problem(&text, first).is_none(), "{text}");
        let problem = problem(&text, second)?;
        assert_eq!(code, Some(1), "{text}");
        problem.contains("default/late").then_some(problem)
    });
    let state = problem.split(": ").nth(1).context("a state")?;
    assert!(["behind", "stale"].contains(&state), "{problem}");
    Ok(())
}
