//! Answers the command line's question what a change would do. Each change is planned beside the loop, from the loop's own snapshot. The loop
//! compares the plan with the tables, a part at a time.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::clock;
use crate::config::{Settings, Source as Origin};
use crate::observe::preview::PlanReport;
use lb_model::{AllowedAnnotations, Refusal, Snapshot};
use lb_objects::change::{ChangeError, ObjectChange, Rules};
use lb_plan::plan::{Inputs, PortEffect, Preview};

/// How many parts may wait for the loop.
const REQUESTS: usize = 4;
/// So many service ports are compared with the tables at once: other work has its turn between.
const PORTS_AT_ONCE: usize = 128;

/// A request to the loop.
#[derive(Debug)]
pub(super) enum Request {
    /// What is served; `None`: nothing is known yet.
    Present(oneshot::Sender<Option<Present>>),
    /// What would happen to some of the service ports.
    Compare { preview: Arc<Preview>, ports: Range<usize>, reply: oneshot::Sender<Compared> },
}

/// What is served, and what it is planned by.
#[derive(Debug)]
pub(super) struct Present {
    pub snapshot: Arc<Snapshot>,
    pub inputs: Inputs,
}

/// What would happen to some service ports.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub effects: Vec<PortEffect>,
    pub no_room: Vec<Refusal>,
}

/// Plans changes for the command line, with the loop's snapshot and tables.
#[derive(Clone, Debug)]
pub(super) struct Previews {
    requests: mpsc::Sender<Request>,
    allowed: AllowedAnnotations,
    is_api: bool,
    /// One plan at a time: each holds the desired state twice.
    alone: Arc<Mutex<()>>,
}

/// A change that was planned, before it is compared with the tables.
struct Planned {
    preview: Preview,
    revision: u64,
    refusals: Vec<Refusal>,
    ignored: Vec<String>,
}

impl Previews {
    /// The planner of changes, and the receiver of its requests, which the loop reads.
    pub fn new(settings: &Settings) -> (Self, mpsc::Receiver<Request>) {
        let (requests, asked) = mpsc::channel(REQUESTS);
        let (allowed, is_api) = (settings.allowed_annotations.clone(), settings.source == Origin::Kube);
        (Self { requests, allowed, is_api, alone: Arc::default() }, asked)
    }

    /// Plans the change. `stale`: why the source is.
    pub async fn report(&self, change: String, stale: Option<String>) -> PlanReport {
        let _alone = self.alone.lock().await;
        let report = match self.planned(change).await {
            Ok(planned) => self.compared(planned).await,
            Err(error) => PlanReport::failed(error),
        };
        PlanReport { stale, ..report }
    }

    async fn planned(&self, change: String) -> Result<Planned, String> {
        let (reply, present) = oneshot::channel();
        // A loop that has ended answers nothing.
        let _ = self.requests.send(Request::Present(reply)).await;
        let present = present.await.ok().flatten();
        let present =
            present.ok_or("the agent knows no objects yet: ask again when `ballast status` shows a revision")?;
        let rules = if self.is_api { Rules::Api { now_s: clock::wall().as_second() } } else { Rules::File };
        let allowed = self.allowed.clone();
        let planned = spawn_blocking(move || plan(&change, present, &allowed, rules)).await;
        planned
            .map_err(|_| "the change could not be planned: the agent's log says why")?
            .map_err(|error| error.to_string())
    }

    async fn compared(&self, planned: Planned) -> PlanReport {
        let Planned { preview, revision, mut refusals, ignored } = planned;
        refusals.extend(preview.refusals());
        let health_checks: Vec<_> = preview.health_checks().iter().map(Into::into).collect();
        let (preview, mut services) = (Arc::new(preview), Vec::new());
        for first in (0..preview.ports().len()).step_by(PORTS_AT_ONCE) {
            let ports = first..preview.ports().len().min(first + PORTS_AT_ONCE);
            let (reply, compared) = oneshot::channel();
            let _ = self.requests.send(Request::Compare { preview: preview.clone(), ports, reply }).await;
            let Ok(compared) = compared.await else { return PlanReport::failed("the agent ends") };
            services.extend(compared.effects.iter().map(Into::into));
            refusals.extend(compared.no_room);
        }
        PlanReport {
            revision,
            differs: !services.is_empty() || !health_checks.is_empty(),
            services,
            health_checks,
            refusals: refusals.iter().map(ToString::to_string).collect(),
            ignored,
            ..PlanReport::default()
        }
    }
}

fn plan(change: &str, present: Present, allowed: &AllowedAnnotations, rules: Rules) -> Result<Planned, ChangeError> {
    let change = ObjectChange::parse("the change", change)?;
    let changed = change.over(&present.snapshot, allowed, rules)?;
    let preview = Preview::new(&present.snapshot, &changed.snapshot, present.inputs);
    let revision = present.snapshot.revision;
    Ok(Planned { preview, revision, refusals: changed.refusals, ignored: change.ignored })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use lb_objects::manifest::snapshot;

    const SERVICE: &str =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";

    fn previews() -> (Previews, mpsc::Receiver<Request>) {
        let source = Some(Origin::File("/m.yaml".into()));
        Previews::new(&Options { source, ..Options::default() }.settle(Some("n1")).expect("complete"))
    }

    /// Answers as the loop does, over this snapshot; how many times it was asked to compare.
    async fn serve(mut asked: mpsc::Receiver<Request>, present: Option<Snapshot>) -> usize {
        let mut compared = 0;
        while let Some(request) = asked.recv().await {
            match request {
                Request::Present(reply) => {
                    let present = present.clone().map(Arc::new);
                    let present = present.map(|snapshot| Present { snapshot, inputs: Inputs::default() });
                    reply.send(present).expect("it waits");
                }
                Request::Compare { preview, ports, reply } => {
                    compared += 1;
                    assert!(ports.len() <= PORTS_AT_ONCE);
                    let programmed = lb_plan::plan::ProgrammedState::new(lb_plan::plan::Capacities::all(4096));
                    let effect = |key| preview.effect(key, &programmed, clock::monotonic());
                    let effects = preview.ports()[ports].iter().filter_map(effect).collect();
                    reply.send(Compared { effects, no_room: Vec::new() }).expect("it waits");
                }
            }
        }
        compared
    }

    #[tokio::test]
    async fn an_agent_without_objects_says_so() {
        let (previews, asked) = previews();
        let served = tokio::spawn(serve(asked, None));
        let report = previews.report(SERVICE.to_owned(), None).await;
        assert!(report.error.is_some_and(|error| error.contains("no objects yet")));
        drop(previews);
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_change_is_planned_over_what_is_served_and_compared_in_parts() {
        let (previews, asked) = previews();
        let served = tokio::spawn(serve(asked, Some(snapshot(SERVICE))));
        let same = previews.report(SERVICE.to_owned(), Some("old".to_owned())).await;
        assert_eq!((same.differs, same.error, same.stale.as_deref(), same.revision), (false, None, Some("old"), 4));
        let ports: Vec<String> = (1..=300).map(|port| format!("{{name: p{port}, port: {port}}}")).collect();
        let many = SERVICE.replace("{port: 80}", &ports.join(", "));
        let report = previews.report(many, None).await;
        assert_eq!((report.differs, report.services.len()), (true, 300));
        let broken = previews.report("kind: Service\n  name: [\n".to_owned(), None).await;
        assert!(broken.error.is_some_and(|error| error.starts_with("the change:2:")));
        drop(previews);
        assert_eq!(served.await.expect("no panic"), 3, "300 ports, 128 at a time");
    }
}
