//! Ages the entries of the programs and of the model, or removes one as a full table does.

use anyhow::Result;
use lb_common::abi::{Affinity, Flow, FlowKey, HalfOpen, is_claim, second};

use super::connection::Claim;
use super::entries::Tuple;
use super::model::Model;
use super::tables::Bytes as _;
use crate::test_run::LoadedPrograms;

/// A claim on a connection that nobody establishes lasts so many seconds.
const CLAIM_S: u32 = 60;

fn older(time_s: u32, seconds: u32) -> u32 {
    time_s.saturating_sub(seconds).max(1)
}

/// Makes everything that the model has seen look older.
fn age_model(model: &mut Model, seconds: u32) {
    let older = |time_s: u32| older(time_s, seconds);
    for connection in &mut model.connections {
        connection.since_s = older(connection.since_s);
        for half in [&mut connection.forward, &mut connection.reply].into_iter().flatten() {
            half.seen_s = older(half.seen_s);
        }
    }
    for adopted in &mut model.adopted {
        adopted.since_s = older(adopted.since_s);
        adopted.asked_s = adopted.asked_s.map(older);
        adopted.answered_s = older(adopted.answered_s);
    }
    for claim in &mut model.claims {
        claim.winner.since_s = older(claim.winner.since_s);
        if let Some(half) = &mut claim.winner.forward {
            half.seen_s = older(half.seen_s);
        }
    }
    // As the sweep does with what is silent for long.
    let now_s = model.now_s;
    let seen_s = |claim: &Claim| claim.winner.forward.map_or(0, |half| half.seen_s);
    model.claims.retain(|claim| now_s - seen_s(claim) <= CLAIM_S);
    for second in &mut model.seconds {
        (second.since_s, second.seen_s) = (older(second.since_s), older(second.seen_s));
    }
    for health in model.health.values_mut() {
        for time in [&mut health.answered_s, &mut health.ejected_s, &mut health.probe_s] {
            *time = time.map(older);
        }
        health.evidence_client = health.evidence_client.map(|(who, since_s)| (who, older(since_s)));
    }
}

/// Makes everything that was seen, in the maps and in the model, look `seconds` older.
pub fn age(programs: &mut LoadedPrograms, model: &mut Model, seconds: u32) -> Result<()> {
    age_model(model, seconds);
    let older = |time_s: u32| older(time_s, seconds);
    macro_rules! family {
        ($tables:ident, $life:ident) => {
            for (key, flow) in programs.$tables.all_flows()? {
                let flow = Flow { seen_s: older(flow.seen_s), since_s: older(flow.since_s), ..flow };
                programs.$tables.flows_of(&key).insert(key, flow, 0)?;
            }
            for (key, half) in programs.$life.all_half_open()? {
                let flow = Flow { seen_s: older(half.flow.seen_s), since_s: older(half.flow.since_s), ..half.flow };
                if is_claim(&key) && model.now_s - flow.seen_s > CLAIM_S {
                    programs.$life.half_open.remove(&key)?;
                    continue;
                }
                programs.$life.half_open.insert(key, HalfOpen { flow, ..half }, 0)?;
            }
            for &id in model.backends.keys() {
                let mut health = programs.$life.health.get(&id, 0)?;
                for time_s in
                    [&mut health.answered_s, &mut health.ejected_s, &mut health.probe_s, &mut health.evidence_s]
                {
                    *time_s = if *time_s == 0 { 0 } else { older(*time_s) };
                }
                programs.$life.health.set(id, health, 0)?;
            }
            for item in programs.$life.affinity.iter().collect::<Result<Vec<_>, _>>()? {
                let (key, affinity) = item;
                let seen_ds = affinity.seen_ds.saturating_sub(10 * seconds).max(1);
                programs.$life.affinity.insert(key, Affinity { seen_ds, ..affinity }, 0)?;
            }
        };
    }
    if model.backends.values().any(|backend| backend.address.is_ipv6()) {
        family!(tables6, state6);
    } else {
        family!(tables4, state4);
    }
    Ok(())
}

/// Removes one entry, as the table does that makes room.
/// `is_beside`: a client's, of a second handshake.
pub fn remove(
    programs: &mut LoadedPrograms,
    (protocol, src, dst): Tuple,
    half_open: bool,
    is_beside: bool,
) -> Result<()> {
    let (src_port, dst_port, pad) = (src.port(), dst.port(), [if is_beside { second::KEY } else { 0 }, 0, 0]);
    let (src, dst) = (src.ip(), dst.ip());
    if src.is_ipv4() {
        let key = FlowKey { src: src.bytes(), dst: dst.bytes(), src_port, dst_port, protocol, pad };
        if half_open {
            programs.state4.half_open.remove(&key)?;
        } else {
            programs.tables4.flows_of(&key).remove(&key)?;
        }
    } else {
        let key = FlowKey { src: src.bytes(), dst: dst.bytes(), src_port, dst_port, protocol, pad };
        if half_open {
            programs.state6.half_open.remove(&key)?;
        } else {
            programs.tables6.flows_of(&key).remove(&key)?;
        }
    }
    Ok(())
}
