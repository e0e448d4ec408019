//! How much of what is wanted one run carries out.

use super::{Desired, DesiredService, Op, ProgrammedState, layout::maglev_slots};
use lb_model::PortKey;

/// So many slots of a table are filled and written in the time of one endpoint.
const SLOTS_PER_ENDPOINT: u32 = 32;

/// What it costs to bring a service port to what is wanted, about: its endpoints and source ranges, those of before, and what its slots
/// take.
pub fn work(key: &PortKey, desired: &Desired, programmed: &ProgrammedState) -> usize {
    let written = programmed.services().by_key(key);
    let wanted = desired.services.get(key);
    let of_wanted = |wanted: &DesiredService| {
        wanted.endpoints.len() + wanted.sources.len() + (slots(wanted) / SLOTS_PER_ENDPOINT) as usize
    };
    1 + written.map_or(0, |service| service.current.len() + service.sources.len()) + wanted.map_or(0, of_wanted)
}

fn slots(wanted: &DesiredService) -> u32 {
    let endpoints = u32::try_from(wanted.endpoints.len()).unwrap_or(u32::MAX);
    maglev_slots(wanted.scheduler, wanted.maglev_size, wanted.slots_max, endpoints).unwrap_or(endpoints)
}

/// How many of the operations of one service port are carried out in one run. That is `max`, and once slots are written as far as the last frontend:
/// until a frontend leads to them, the next plan would write others.
pub fn part(ops: &[Op], max: usize) -> usize {
    let is_switch =
        |op: &Op| matches!(op, Op::WriteSlots { .. } | Op::WriteFrontend { .. } | Op::RemoveFrontend { .. });
    let begin = ops.iter().position(is_switch).unwrap_or(ops.len());
    let end = ops.iter().rposition(is_switch).map_or(0, |last| last + 1);
    if max <= begin { max.min(ops.len()) } else { max.max(end).min(ops.len()) }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::plan::{Frontend, Range};
    use lb_model::Protocol;

    #[test]
    fn slots_and_the_frontends_that_lead_there_are_one_part() {
        let frontend = Frontend { address: IpAddr::from([10, 96, 0, 1]), port: 80, protocol: Protocol::Tcp };
        let other = || Op::ReleaseSlots { range: Range { base: 0, count: 1 } };
        let switch = [Op::WriteSlots { base: 0, slots: Vec::new() }, Op::RemoveFrontend { frontend }];
        let ops: Vec<Op> = [other(), other()].into_iter().chain(switch).chain([other(), other()]).collect();
        let parts: Vec<usize> = (1..=7).map(|max| part(&ops, max)).collect();
        assert_eq!(parts, [1, 2, 4, 4, 5, 6, 6]);
        assert_eq!(part(&ops[..2], 1), 1);
    }
}
