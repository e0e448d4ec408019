//! What the running agent says of the slices, and what is said without it.

use lb_common::abi::backend_state;

use super::memory::{Memory, key};
use super::{Explanation, Reported, at_beside, candidate, outcome};
use crate::explain::{Seen, packet, text};
use crate::observe::report::{EndpointProblemReport, Report, SourceReport, TablesReport};
use lb_plan::plan::Cause;

const GONE: &str = "draining: its endpoint is gone from every slice";
const NO_ENDPOINT: &str = "draining: no endpoint of the service port any more";
const OTHER_PORT: &str = "draining: no slice has its endpoint with port `http`";

/// Three endpoints of the port `htpp`, and perhaps others of the right one.
fn mismatch(partial: bool) -> EndpointProblemReport {
    EndpointProblemReport {
        namespace: "demo".into(),
        name: "web".into(),
        port: 80,
        protocol: "TCP".into(),
        port_name: "http".into(),
        family: "IPv4".into(),
        text: "no endpoint has the port: 3 endpoints have port `htpp`; none has `http`".into(),
        remedy: "give both one name".into(),
        lacks: Some("port `http`".into()),
        partial,
        ..EndpointProblemReport::default()
    }
}

fn report(endpoint_problems: Vec<EndpointProblemReport>) -> Report {
    let endpoint_problem_count = endpoint_problems.len() as u64;
    Report {
        tables: TablesReport { synced: true, endpoint_problems, endpoint_problem_count, ..TablesReport::default() },
        ..Report::default()
    }
}

fn said(memory: &Memory, reported: Reported) -> Explanation {
    at_beside(memory, Seen::PodIn, packet(memory, key()), reported)
}

#[test]
fn a_port_that_no_endpoint_has_is_the_reason() {
    let mut memory = Memory::serving(0);
    memory.put_backend(4, backend_state::DRAINING, 0);
    for seen in [Seen::PodIn, Seen::Socket] {
        let known = || report(vec![mismatch(false)]).into();
        let explained = at_beside(&memory, seen, packet(&memory, key()), known());
        assert_eq!(outcome(&explained).0, "refuse");
        assert_eq!(explained.endpoint_problems, [mismatch(false)]);
        assert_eq!(explained.change, "port `http` in the slices of demo/web");
        assert_eq!(candidate(&explained, 4).reason, OTHER_PORT);
        let rows = text::rows(&explained, None);
        let row = rows.iter().find(|(label, _)| *label == "ENDPOINTS").expect("a reason");
        assert_eq!(row.1, "no endpoint has the port: 3 endpoints have port `htpp`; none has `http`");
    }
    // Without the agent, and of another service, family, port or protocol, no such reason is given.
    let others = [
        EndpointProblemReport { name: "other".into(), ..mismatch(false) },
        EndpointProblemReport { family: "IPv6".into(), ..mismatch(false) },
        EndpointProblemReport { port: 81, ..mismatch(false) },
        EndpointProblemReport { protocol: "UDP".into(), ..mismatch(false) },
    ];
    for (reported, reason) in [(Reported::default(), NO_ENDPOINT), (report(others.to_vec()).into(), GONE)] {
        let explained = said(&memory, reported);
        assert_eq!(
            (&*explained.endpoint_problems, explained.change.as_str()),
            (&[][..], "a ready endpoint of demo/web")
        );
        assert_eq!(candidate(&explained, 4).reason, reason);
        assert!(text::rows(&explained, None).iter().all(|(label, _)| *label != "ENDPOINTS"));
    }
}

#[test]
fn each_cause_is_a_row_with_its_remedy() {
    let memory = Memory::serving(0);
    for cause in Cause::ALL {
        let (text, remedy) = (cause.phrase().to_owned(), cause.remedy().to_owned());
        let problem = EndpointProblemReport { text, remedy, lacks: None, ..mismatch(false) };
        let explained = said(&memory, report(vec![problem]).into());
        let rows = text::rows(&explained, None);
        let of = |label: &str| rows.iter().find(|row| row.0 == label).map(|row| row.1.as_str());
        assert_eq!((of("ENDPOINTS"), of("REMEDY")), (Some(cause.phrase()), Some(cause.remedy())));
    }
}

/// A slice is not read, not planned or not written yet, or not all mismatches are listed: then nobody knows.
#[test]
fn an_endpoint_is_gone_from_every_slice_only_if_that_is_known() {
    let mut memory = Memory::serving(1);
    memory.put_backend(4, backend_state::DRAINING, 0);
    let of = |change: fn(&mut Report)| {
        let mut report = report(Vec::new());
        change(&mut report);
        candidate(&said(&memory, report.into()), 4).reason.clone()
    };
    assert_eq!(of(|_| ()), GONE);
    assert_eq!(of(|report| report.source = SourceReport { refused: 1, ..SourceReport::default() }), NO_ENDPOINT);
    assert_eq!(of(|report| report.source.stale = Some("old".into())), NO_ENDPOINT);
    assert_eq!(of(|report| report.tables.refused = 1), NO_ENDPOINT);
    assert_eq!(of(|report| report.tables.synced = false), NO_ENDPOINT);
    assert_eq!(of(|report| report.tables.pending.slices = 1), NO_ENDPOINT);
    assert_eq!(of(|report| report.tables.endpoint_problem_count = 1), NO_ENDPOINT);
    // Other endpoints have the port, and serve.
    let explained = said(&memory, report(vec![mismatch(true)]).into());
    assert_eq!((candidate(&explained, 4).reason.as_str(), &*explained.endpoint_problems), (OTHER_PORT, &[][..]));
}

#[test]
fn an_address_that_has_another_port_number_now_is_in_a_slice() {
    let mut memory = Memory::serving(1);
    memory.put_backend(4, backend_state::DRAINING, 0);
    let address = memory.backends[&1].address;
    memory.backends.get_mut(&4).expect("there").address = address;
    assert_eq!(candidate(&said(&memory, report(Vec::new()).into()), 4).reason, NO_ENDPOINT);
}
