//! The result for people.

use super::Results;
use super::measure::Comparison;

/// Prints a table.
pub fn print(results: &Results) {
    println!(
        "Programs on one packet (BPF_PROG_TEST_RUN, repeat 1), less a program that does nothing; {} rounds of {} packets, taking \
         turns.\nKernel {}, {} CPUs, load average {} before and {} after.\n",
        results.rounds,
        results.packets_per_round,
        results.machine.kernel,
        results.machine.cpus,
        results.load_before,
        results.load_after
    );
    println!("| version | family | packet | ns | the least, ns | ratio | middle half |");
    println!("|---|---|---|---:|---:|---:|---:|");
    for figures in &results.figures {
        let [low, high] = figures.quartiles;
        println!(
            "| {} | {} | {} | {:.0} | {:.0} | **{:.2}** | {low:.2} – {high:.2} |",
            figures.version, figures.family, figures.kind, figures.ns, figures.least_ns, figures.ratio
        );
    }
    if !results.comparisons.is_empty() {
        println!("\n| family | packet | now / before | middle half |\n|---|---|---:|---:|");
    }
    for Comparison { family, kind, ratio, quartiles: [low, high] } in &results.comparisons {
        println!("| {family} | {kind} | **{ratio:.3}** | {low:.3} – {high:.3} |");
    }
}
