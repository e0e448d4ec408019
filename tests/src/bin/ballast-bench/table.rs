//! The result, for people and for programs.

use anyhow::Result;
use serde_json::{Value, json};

use crate::ConnectArguments;
use crate::connect::{MESSAGE_BYTES, Outcome};
use crate::statistics::Samples;

/// Prints a table.
pub fn print(asked: &ConnectArguments, outcomes: &[Outcome]) {
    let ConnectArguments { rounds, connections, .. } = asked;
    println!(
        "TCP connect + request + response ({MESSAGE_BYTES} bytes each), rates as ratios: 1 is as fast, 0.9 is 10 % slower.\n\
         {rounds} rounds with {connections} connections of each side, taking turns; median and middle half of the rounds.\n"
    );
    println!("| family | what | to what | rate | middle half | µs | µs of what | |");
    println!("|---|---|---|---:|---:|---:|---:|---|");
    for outcome in outcomes {
        let [low, high] = outcome.ratio.quartiles();
        println!(
            "| {} | {} | {} | **{:.3}** | {low:.3} – {high:.3} | {:.1} | {:.1} | {} |",
            outcome.family,
            outcome.tested,
            outcome.reference,
            outcome.ratio.median(),
            outcome.tested_us.median(),
            outcome.reference_us.median(),
            outcome.meaning
        );
    }
}

/// Prints JSON.
pub fn print_json(asked: &ConnectArguments, outcomes: &[Outcome]) -> Result<()> {
    let comparisons: Vec<Value> = outcomes.iter().map(comparison).collect();
    let result = json!({
        "bench": "connect",
        "kernel": nix::sys::utsname::uname()?.release().to_string_lossy(),
        "cpus": std::thread::available_parallelism()?,
        "rounds": asked.rounds,
        "connectionsPerRound": asked.connections,
        "messageBytes": MESSAGE_BYTES,
        "comparisons": comparisons,
    });
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(())
}

fn comparison(outcome: &Outcome) -> Value {
    json!({
        "family": outcome.family,
        "tested": outcome.tested,
        "reference": outcome.reference,
        "meaning": outcome.meaning,
        "rateRatio": summary(&outcome.ratio),
        "testedMicroseconds": summary(&outcome.tested_us),
        "referenceMicroseconds": summary(&outcome.reference_us),
    })
}

fn summary(samples: &Samples) -> Value {
    json!({"median": samples.median(), "quartiles": samples.quartiles()})
}
