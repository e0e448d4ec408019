//! What others have put on the links that packets would be handed past: programs, and queues.

use std::collections::{BTreeMap, BTreeSet};

use rtnetlink::Handle;

use super::super::{
    DatapathError, bpf_link, clsact,
    point::{Point, Role},
};

/// How many programs of one place are looked at.
const MOST_PROGRAMS: usize = 16;
/// A link without a queue of its own, as pairs and bridges are made.
const NO_QUEUE: &str = "noqueue";

/// What of others hangs on the links of pods and on bridges.
pub(super) async fn look(
    handle: &mut Handle,
    names: &BTreeMap<u32, (String, Role)>,
    ours: &BTreeSet<u32>,
) -> Result<Vec<String>, DatapathError> {
    let mut found = Vec::new();
    let skipped = |ifindex: &u32| {
        names.get(ifindex).filter(|(_, role)| matches!(role, Role::Pod | Role::Bridge)).map(|(name, _)| name.as_str())
    };
    for (ifindex, kind) in clsact::qdiscs(handle).await? {
        let Some(name) = skipped(&ifindex) else { continue };
        match kind.as_str() {
            NO_QUEUE => {}
            clsact::CLSACT => {
                for point in [Point::In, Point::Out] {
                    let foreign = clsact::side(handle, ifindex, point).await?.foreign;
                    found.extend((foreign > 0).then(|| format!("{foreign} tc filters on {name} ({point})")));
                }
            }
            _ => found.push(format!("qdisc {kind} on {name}")),
        }
    }
    for (ifindex, name) in names.keys().filter_map(|ifindex| Some((ifindex, skipped(ifindex)?))) {
        for point in [Point::In, Point::Out] {
            let programs = bpf_link::tcx_programs::<MOST_PROGRAMS>(*ifindex, point.attach_type());
            let programs = programs.map_err(DatapathError::kernel(format!("ask for the programs on {name}")))?;
            let foreign = programs.into_iter().filter(|id| !ours.contains(id));
            found.extend(foreign.map(|id| format!("tcx program {id} on {name} ({point})")));
        }
    }
    Ok(found)
}
