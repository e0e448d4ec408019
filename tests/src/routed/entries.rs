//! Reads the flow tables of a node: empty once every flow is over.

use lb_common::map;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lb_tables::Pinned;

use super::Network;

/// The longest that the timeouts of a test and a few rounds of the sweep may take on a busy machine.
const OVER: Duration = Duration::from_secs(90);

/// Entries of flows, answered and half-open, of both families, in the tables below this bpffs; each told in words.
pub fn left(bpffs: &Path) -> Result<Vec<String>> {
    let pinned = Pinned::open(&bpffs.join("ballast/tables"))?;
    let mut all = Vec::new();
    pinned.of::<map::Flows<4>>().each(|key, flow| all.push(format!("{key:?} {flow:?}")))?;
    pinned.of::<map::Flows<16>>().each(|key, flow| all.push(format!("{key:?} {flow:?}")))?;
    pinned.of::<map::UdpFlows<4>>().each(|key, flow| all.push(format!("{key:?} {flow:?}")))?;
    pinned.of::<map::UdpFlows<16>>().each(|key, flow| all.push(format!("{key:?} {flow:?}")))?;
    pinned.of::<map::HalfOpen<4>>().each(|key, half| all.push(format!("{key:?} {half:?}")))?;
    pinned.of::<map::HalfOpen<16>>().each(|key, half| all.push(format!("{key:?} {half:?}")))?;
    Ok(all)
}

/// Waits until no node that has an agent has an entry left.
pub fn eventually_empty(network: &Network) {
    let start = std::time::Instant::now();
    for node in &network.nodes[..network.agents.len()] {
        loop {
            let left = left(node.bpffs()).unwrap_or_else(|error| panic!("tables of {}: {error:#}", node.node_name()));
            if left.is_empty() {
                break;
            }
            let name = node.node_name();
            assert!(start.elapsed() < OVER, "{} entries are left on {name}, the first: {:?}", left.len(), left.first());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
