//! A file as its editor sees it: written, broken, mended, removed. Time is paused, so that nothing waits for a clock.

use std::{fs, io::Write};

use tempfile::TempDir;

use super::*;
use lb_model::ObjectName;

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
";
const BAD: &str = "
apiVersion: v1
kind: Service
metadata: {name: bad}
spec: {clusterIP: 10.96.0.1, ports: [{port: 0}]}
";

struct Watched {
    dir: TempDir,
    source: Source,
    stop: CancellationToken,
}

/// Follows `name` in a folder of its own; `name` empty: the folder.
fn watched(name: &str, files: &[(&str, &str)]) -> Watched {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        fs::write(dir.path().join(file), text).unwrap();
    }
    let stop = CancellationToken::new();
    let path = if name.is_empty() { dir.path().to_owned() } else { dir.path().join(name) };
    let source = spawn(path, "n1".into(), AllowedAnnotations::all(), stop.clone());
    Watched { dir, source, stop }
}

impl Watched {
    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.path().join(file), text).unwrap();
    }

    async fn until(&mut self, wanted: impl FnMut(&SourceStatus) -> bool) -> SourceStatus {
        self.source.status.wait_for(wanted).await.unwrap().clone()
    }

    fn services(&self) -> Option<Vec<String>> {
        let snapshot = self.source.snapshots.borrow();
        snapshot.as_ref().map(|snapshot| snapshot.services.keys().map(ObjectName::to_string).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_is_followed_and_a_broken_one_changes_nothing() {
    let mut watched = watched("web.yaml", &[("web.yaml", WEB)]);
    let status = watched.until(|status| status.revision == 1).await;
    assert!(status.synced && status.last_error.is_none() && status.last_proof.contains_key("file"));
    assert_eq!(watched.services().unwrap(), ["default/web"]);

    watched.write("web.yaml", &format!("{WEB}---\n{}", WEB.replace("web", "api")));
    watched.until(|status| status.revision == 2).await;
    assert_eq!(watched.services().unwrap(), ["default/api", "default/web"]);

    watched.write("web.yaml", &format!("{WEB}  broken: [\n"));
    let status = watched.until(|status| status.last_error.is_some()).await;
    let error = status.last_error.unwrap();
    assert!(error.contains("web.yaml:") && error.contains("what was known of it stays as it was"), "{error}");
    assert_eq!(watched.services().unwrap(), ["default/api", "default/web"], "either may be the broken one");

    watched.write("web.yaml", WEB);
    watched.until(|status| status.last_error.is_none()).await;
    assert_eq!(watched.services().unwrap(), ["default/web"]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_file_is_no_truth_and_an_empty_one_is() {
    let mut watched = watched("web.yaml", &[]);
    let status = watched.until(|status| status.last_error.is_some()).await;
    assert!(status.last_error.unwrap().contains("cannot be read"));
    assert_eq!(watched.services(), None);

    watched.write("web.yaml", WEB);
    watched.until(|status| status.revision == 1).await;
    fs::remove_file(watched.dir.path().join("web.yaml")).unwrap();
    watched.until(|status| status.last_error.is_some()).await;
    assert_eq!(watched.services().unwrap(), ["default/web"]);

    watched.write("web.yaml", "# nothing here\n");
    watched.until(|status| status.revision == 2).await;
    assert_eq!(watched.services().unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_folder_is_the_sum_of_its_manifests() {
    let files = [
        ("a.yaml", WEB),
        (".hidden.yaml", "{"),
        ("notes.txt", "{"),
        ("b.yml", BAD),
        ("c.json", "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}}"),
    ];
    let mut watched = watched("", &files);
    let status = watched.until(|status| status.revision == 1).await;
    assert_eq!(watched.services().unwrap(), ["default/web"]);
    assert_eq!(status.refusals.len(), 1);
    assert_eq!(status.refusals[0].object, "Service default/bad");
    assert!(status.notes[0].ends_with("c.json: Pod p is ignored: only Service, EndpointSlice and Node are read"));

    watched.write("d.yaml", WEB);
    let status = watched.until(|status| status.revision == 2).await;
    let twice = status.refusals.iter().find(|refusal| refusal.object == "Service default/web").unwrap();
    assert!(twice.reason.contains("d.yaml"), "{twice}");
    assert_eq!(watched.services().unwrap(), ["default/web"]);
}

/// What is bad is named; what was known of it stays, and everything else is followed.
#[tokio::test(start_paused = true)]
async fn a_bad_file_of_a_folder_is_that_files_alone() {
    let mut watched = watched("", &[("a.yaml", WEB)]);
    watched.until(|status| status.revision == 1).await;
    let path = |file: &str| watched.dir.path().join(file);
    std::os::unix::fs::symlink("/nowhere", path("dangling.yaml")).unwrap();
    nix::unistd::mkfifo(&path("fifo.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(path("bytes.yaml"), [0xff, 0xfe]).unwrap();
    fs::write(path("knative.yaml"), "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\n")
        .unwrap();
    watched.write("a.yaml", &format!("{WEB}---\nkind: [\n---\n{}", WEB.replace("web", "api")));
    let served = |watched: &Watched, wanted: &[&str]| watched.services().is_some_and(|services| services == wanted);
    let status = watched.until(|status| status.revision > 1 && status.notes.len() == 1).await;
    assert!(served(&watched, &["default/api", "default/web"]), "{:?}", watched.services());
    let error = status.last_error.unwrap();
    assert!(error.contains("a.yaml:7:") && error.contains("(and 3 more)"), "{error}");
    // The bad document may be the one that was `web`: it stays. A document of another file comes all the same.
    watched.write("a.yaml", &format!("kind: [\n---\n{}", WEB.replace("web", "api")));
    watched.write("b.yaml", &WEB.replace("web", "new"));
    let before = status.revision;
    watched.until(|status| status.revision > before).await;
    assert!(served(&watched, &["default/api", "default/new", "default/web"]), "{:?}", watched.services());
    // As after a reboot: nothing is known but what is good.
    let mut other =
        spawn(watched.dir.path().to_owned(), "n1".into(), AllowedAnnotations::all(), CancellationToken::new());
    other.status.wait_for(|status| status.synced).await.unwrap();
    assert_eq!(other.snapshots.borrow().as_ref().unwrap().services.len(), 2);
}

/// A ConfigMap is mounted as a link to a folder that is exchanged as a whole.
#[tokio::test(start_paused = true)]
async fn an_exchanged_folder_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    for (version, text) in [("v1", WEB.to_owned()), ("v2", WEB.replace("web", "api"))] {
        fs::create_dir(dir.path().join(version)).unwrap();
        let mut file = fs::File::create(dir.path().join(version).join("web.yaml")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
    let data = dir.path().join("data");
    std::os::unix::fs::symlink("v1", &data).unwrap();
    std::os::unix::fs::symlink("data/web.yaml", dir.path().join("web.yaml")).unwrap();
    let source = spawn(dir.path().join("web.yaml"), "n1".into(), AllowedAnnotations::all(), CancellationToken::new());
    let mut watched = Watched { dir, source, stop: CancellationToken::new() };
    watched.until(|status| status.revision == 1).await;
    std::os::unix::fs::symlink("v2", watched.dir.path().join("new")).unwrap();
    fs::rename(watched.dir.path().join("new"), &data).unwrap();
    watched.until(|status| status.revision == 2).await;
    assert_eq!(watched.services().unwrap(), ["default/api"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_does_not_change_is_proven_again_and_again() {
    let mut watched = watched("web.yaml", &[("web.yaml", WEB)]);
    let first = watched.until(|status| status.revision == 1).await.last_proof["file"];
    let status = watched.until(|status| status.last_proof["file"] > first).await;
    assert_eq!(status.revision, 1);
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_told() {
    let mut watched = watched("web.yaml", &[("web.yaml", WEB)]);
    watched.until(|status| status.synced).await;
    watched.stop.cancel();
    watched.source.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_the_nodes_in_a_manifest_this_one_counts() {
    let node = |name: &str, zone: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n"
        )
    };
    let text = format!("{WEB}{}{}", node("n2", "b"), node("n1", "a"));
    let mut watched = watched("web.yaml", &[("web.yaml", &text)]);
    let status = watched.until(|status| status.revision == 1).await;
    assert_eq!((status.refusals.total(), status.notes), (0, Vec::new()));
    let zone = watched.source.snapshots.borrow().as_ref().unwrap().node.as_ref().unwrap().zone.clone();
    assert_eq!(zone.as_deref(), Some("a"));
    watched.write("web.yaml", &format!("{text}{}", node("n1", "c")));
    let status = watched.until(|status| status.revision == 2).await;
    assert!(status.refusals[0].to_string().starts_with("Node n1: it is there more than once"));
}

/// A plan compares by the place: an object that is converted again is compared field by field.
#[tokio::test(start_paused = true)]
async fn an_object_of_a_file_that_does_not_change_is_converted_once() {
    let api = WEB.replace("web", "api");
    let mut watched = watched("", &[("api.yaml", &api), ("web.yaml", WEB)]);
    let service = |watched: &Watched, name: &str| {
        let snapshot = watched.source.snapshots.borrow();
        Arc::clone(&snapshot.as_ref().unwrap().services[&ObjectName::new("default", name)])
    };
    watched.until(|status| status.revision == 1).await;
    let before = ["api", "web"].map(|name| service(&watched, name));
    watched.write("web.yaml", &WEB.replace("port: 80", "port: 81"));
    watched.until(|status| status.revision == 2).await;
    let after = ["api", "web"].map(|name| service(&watched, name));
    assert_eq!([0, 1].map(|index| Arc::ptr_eq(&before[index], &after[index])), [true, false]);
}

/// Parsing is what a reading costs: a file as it was keeps what was parsed of it, good or bad.
#[test]
fn one_file_that_changes_costs_one_parse() {
    let texts = |web: &str| -> Texts {
        let hangs = "it does not answer".to_owned();
        [("bad.yaml", Ok("{".to_owned())), ("hangs.yaml", Err(hangs)), ("web.yaml", Ok(web.to_owned()))]
            .map(|(path, text)| (PathBuf::from(path), text))
            .into()
    };
    let mut known = BTreeMap::new();
    let all = AllowedAnnotations::all();
    read_anew(texts(WEB), &mut known, "n1", &all);
    let before = known.clone();
    read_anew(texts(&WEB.replace("web", "api")), &mut known, "n1", &all);
    for (path, after) in &known {
        let is_kept = Arc::ptr_eq(&before[path], after);
        assert_eq!(is_kept, path != Path::new("web.yaml"), "{}", path.display());
    }
    let loaded = load(&known);
    assert_eq!((loaded.errors.len(), loaded.unread.len()), (2, 2), "what is bad is named each time: {loaded:?}");
    assert!(loaded.services.contains(&ObjectName::new("default", "api")));
}
