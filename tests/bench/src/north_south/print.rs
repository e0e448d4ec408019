//! The result for people: two tables in Markdown.

use super::Results;
use super::fixture::{AGAIN, XDP_SNAT};
use super::rate::Ratio;

/// Prints both tables.
pub fn print(results: &Results) {
    println!(
        "Kernel {}, {} CPUs, load average {} before and {} after. Medians of {} rounds; in brackets where the median lies with 95 %.\n",
        results.machine.kernel, results.machine.cpus, results.load_before, results.load_after, results.rounds
    );
    println!(
        "Frames of {} bytes of {} known flows over veth, two bursts of {} of each arm in a round, all the work on one CPU:\n",
        results.frame_bytes, results.known_flows, results.frames_per_burst
    );
    println!("| | who forwards | frames/s | ns | rate / plain forwarding | rate / kube-proxy | lost |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    for figures in &results.live {
        println!(
            "| {} | {} | {:.0} | {:.0} | {} | {} | {} |",
            figures.family,
            figures.arm,
            figures.rate,
            figures.ns,
            text(Some(figures.to_plain)),
            text(figures.to_kube_proxy),
            share(figures.lost, figures.frames)
        );
    }
    for figures in results.live.iter().filter(|figures| figures.arm == AGAIN) {
        println!("\nNoise, {}: {XDP_SNAT} again / before: {}.", figures.family, text(figures.to_previous));
    }
    println!(
        "\nOne frame at a time (BPF_PROG_TEST_RUN, repeat 1), less a program that does nothing, {} of each kind in a round; the least \
         is one look-up or four look-ups and two inserts, and the rewrite, at tc:\n",
        results.packets_per_round
    );
    println!("| | at | frame | ns | the least, ns | ratio |");
    println!("|---|---|---|---:|---:|---:|");
    for figures in &results.single {
        println!(
            "| {} | {} | {} | {:.0} | {:.0} | {} |",
            figures.family,
            figures.hook,
            figures.kind,
            figures.ns,
            figures.least_ns,
            text(Some(figures.ratio))
        );
    }
}

fn text(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(String::new, |Ratio { median, interval: [low, high] }| {
        format!("**{median:.2}** ({low:.2} – {high:.2})")
    })
}

/// Lost frames: a count, since it should be none.
fn share(lost: u64, frames: u64) -> String {
    if lost == 0 { "0".to_owned() } else { format!("{lost} of {frames}") }
}
