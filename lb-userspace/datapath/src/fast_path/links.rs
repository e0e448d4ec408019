//! What others have put on the links that packets would be handed past: programs, and queues.

use std::collections::{BTreeMap, BTreeSet};

use rtnetlink::Handle;

use super::skips::Skips;
use crate::{
    DatapathError, bpf_link, clsact,
    point::{Point, Role},
};

/// How many programs of one place are looked at.
const MOST_PROGRAMS: usize = 16;
/// A link without a queue of its own, as pairs and bridges are made.
const NO_QUEUE: &str = "noqueue";

/// The queue of what comes in alone, with filters of its own.
const INGRESS: &str = "ingress";

/// What of others hangs on the links of pods and on bridges, and what packets meet that come in by external ones.
pub(super) async fn find_skipped(
    handle: &mut Handle,
    names: &BTreeMap<u32, (String, Role)>,
    ours: &BTreeSet<u32>,
    skips: &mut Skips,
) -> Result<(), DatapathError> {
    for (ifindex, kind) in clsact::qdiscs(handle).await? {
        let Some((name, role, points)) = skipped(names, ifindex) else { continue };
        let found = skips.of(role);
        match kind.as_str() {
            NO_QUEUE => {}
            clsact::CLSACT => {
                for point in points {
                    let foreign = clsact::side(handle, ifindex, *point).await?.foreign;
                    found.extend((foreign > 0).then(|| format!("{foreign} tc filters on {name} ({point})")));
                }
            }
            // Queues of what goes out are not skipped there.
            kind if role == Role::External && kind != INGRESS => {}
            _ => found.push(format!("qdisc {kind} on {name}")),
        }
    }
    for (name, role, points, ifindex) in names.keys().filter_map(|ifindex| {
        let (name, role, points) = skipped(names, *ifindex)?;
        Some((name, role, points, *ifindex))
    }) {
        for point in points {
            let programs = bpf_link::tcx_programs::<MOST_PROGRAMS>(ifindex, point.attach_type());
            let programs = programs.map_err(DatapathError::kernel(format!("ask for the programs on {name}")))?;
            let foreign = programs.into_iter().filter(|id| !ours.contains(id));
            skips.of(role).extend(foreign.map(|id| format!("tcx program {id} on {name} ({point})")));
        }
    }
    Ok(())
}

/// Name and role of a link of which something is skipped, and where.
fn skipped(names: &BTreeMap<u32, (String, Role)>, ifindex: u32) -> Option<(&str, Role, &'static [Point])> {
    let (name, role) = names.get(&ifindex)?;
    let points: &[Point] = match role {
        Role::Pod | Role::Bridge => &[Point::In, Point::Out],
        Role::External => &[Point::In],
        Role::Tunnel => return None,
    };
    Some((name, *role, points))
}
