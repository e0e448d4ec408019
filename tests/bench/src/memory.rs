//! `memory`: what connections and services take of the kernel's memory, by its own account (`memlock` in fdinfo), without a cluster.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use lb_tests::topology::Topology;
use serde_json::json;

use crate::control::agents::Ballast;
use crate::control::tables::{Ground, KernelMemory, measure};
use crate::figures::{Better, Figure, Part};
use crate::machine::machine;

const MIB: f64 = 1024.0 * 1024.0;

/// Measures and prints.
pub fn run(agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let topology = Topology::new("memory")?;
    let node = topology.node()?;
    let (client, server) = (node.pod("client")?, node.pod("server")?);
    let folder = topology.directory();
    let ballast = Ballast { program: agent, node: &node, log: folder.join("ballast.log") };
    let ground = Ground { client: client.netns(), server: server.netns(), serving: server.addresses().v4 };
    let kernel = measure(&ballast, &ground, folder, stop)?;
    println!("Entries of the flow table for a connection: {:.2}.", kernel.entries_per_connection);
    println!("All maps, idle: {:.1} MiB. A counter that counted: {:.0} B.", kernel.idle / MIB, kernel.per_counter);
    let details = json!({"machine": machine()?, "kernelMemoryBytes": kernel});
    Ok(Part { bench: "memory", figures: figures(&kernel), details, left_out: Vec::new() })
}

fn figures(kernel: &KernelMemory) -> Vec<Figure> {
    let bytes = |name: &str, value| Figure::single(format!("memory: {name}"), value, "B", Better::Less);
    vec![
        bytes("an IPv4 connection, both directions", kernel.per_connection).aims(9, 176.0),
        bytes("a service with 10 backends", kernel.per_service).aims(9, 1024.0),
        bytes("a service with 10 backends, Maglev", kernel.per_maglev_service).aims(9, 4096.0),
        bytes("a counter that counted", kernel.per_counter),
        Figure::single("memory: all maps, idle", kernel.idle / MIB, "MiB", Better::Less),
    ]
}
