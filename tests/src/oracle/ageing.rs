//! What time and a full table do to what the programs have written: it looks older, or an entry is gone.

use anyhow::Result;
use lb_common::abi::{Affinity, Flow, FlowKey, HalfOpen};

use super::entries::Tuple;
use super::tables::Bytes as _;
use super::world::World;
use crate::live::Live;

fn older(time_s: u32, seconds: u32) -> u32 {
    time_s.saturating_sub(seconds).max(1)
}

/// Makes everything that the world has seen look older.
fn age_world(world: &mut World, seconds: u32) {
    let older = |time_s: u32| older(time_s, seconds);
    for connection in &mut world.connections {
        connection.since_s = older(connection.since_s);
        for half in [&mut connection.forward, &mut connection.reply].into_iter().flatten() {
            half.seen_s = older(half.seen_s);
        }
    }
    for left in &mut world.left {
        (left.seen_s, left.since_s) = (older(left.seen_s), older(left.since_s));
    }
    for second in &mut world.seconds {
        second.seen_s = older(second.seen_s);
    }
    for health in world.health.values_mut() {
        for time in [&mut health.answered_s, &mut health.suspect_s, &mut health.probe_s] {
            *time = time.map(older);
        }
    }
}

/// Makes everything that was seen, in the maps and in the world, look `seconds` older.
pub fn age(live: &mut Live, world: &mut World, seconds: u32) -> Result<()> {
    age_world(world, seconds);
    let older = |time_s: u32| older(time_s, seconds);
    macro_rules! family {
        ($tables:ident, $life:ident) => {
            for (key, flow) in live.$tables.all_flows()? {
                let flow = Flow { seen_s: older(flow.seen_s), since_s: older(flow.since_s), ..flow };
                live.$tables.flows.insert(key, flow, 0)?;
            }
            for (key, half) in live.$life.all_half_open()? {
                let flow = Flow { seen_s: older(half.flow.seen_s), since_s: older(half.flow.since_s), ..half.flow };
                live.$life.half_open.insert(key, HalfOpen { flow, ..half }, 0)?;
            }
            for &id in world.backends.keys() {
                let mut health = live.$life.health.get(&id, 0)?;
                for time_s in [&mut health.answered_s, &mut health.suspect_s, &mut health.probe_s] {
                    *time_s = if *time_s == 0 { 0 } else { older(*time_s) };
                }
                live.$life.health.set(id, health, 0)?;
            }
            for item in live.$life.affinity.iter().collect::<Result<Vec<_>, _>>()? {
                let (key, affinity) = item;
                let seen_ds = affinity.seen_ds.saturating_sub(10 * seconds).max(1);
                live.$life.affinity.insert(key, Affinity { seen_ds, ..affinity }, 0)?;
            }
        };
    }
    if world.backends.values().any(|backend| backend.address.is_ipv6()) {
        family!(tables6, life6);
    } else {
        family!(tables4, life4);
    }
    Ok(())
}

/// Removes one entry, as the table does that makes room.
pub fn remove(live: &mut Live, (protocol, src, dst): Tuple, half_open: bool) -> Result<()> {
    let (src_port, dst_port, pad) = (src.port(), dst.port(), [0; 3]);
    let (src, dst) = (src.ip(), dst.ip());
    if src.is_ipv4() {
        let key = FlowKey { src: src.bytes(), dst: dst.bytes(), src_port, dst_port, protocol, pad };
        if half_open { live.life4.half_open.remove(&key)? } else { live.tables4.flows.remove(&key)? }
    } else {
        let key = FlowKey { src: src.bytes(), dst: dst.bytes(), src_port, dst_port, protocol, pad };
        if half_open { live.life6.half_open.remove(&key)? } else { live.tables6.flows.remove(&key)? }
    }
    Ok(())
}
