//! The result, for people and for programs.

use anyhow::Result;
use serde_json::{Value, json};

use super::latency::{ApiWrite, Latency};
use super::objects::ENDPOINTS;
use super::start::Start;
use super::{MOST, Results};
use crate::figures::{Better, Figure};
use crate::machine::machine;
use crate::statistics::Samples;

const MIB: f64 = 1024.0 * 1024.0;

/// One line of the table.
struct Row {
    what: String,
    ballast: String,
    kube_proxy: String,
    ratio: String,
    goal: &'static str,
}

impl Row {
    fn new(what: impl Into<String>, ballast: impl Into<String>, goal: &'static str) -> Self {
        Self { what: what.into(), ballast: ballast.into(), kube_proxy: String::new(), ratio: String::new(), goal }
    }

    /// Both in the same unit; the ratio is kube-proxy's by Ballast's.
    fn against(what: impl Into<String>, ours: f64, theirs: Option<f64>, unit: &str, goal: &'static str) -> Self {
        let mut row = Self::new(what, number(ours, unit), goal);
        if let Some(theirs) = theirs {
            row.kube_proxy = number(theirs, unit);
            row.ratio = format!("{:.1}", theirs / ours);
        }
        row
    }
}

fn number(value: f64, unit: &str) -> String {
    if value.abs() < 10.0 { format!("{value:.2} {unit}") } else { format!("{value:.1} {unit}") }
}

/// Prints a table.
pub fn print(results: &Results) {
    println!(
        "{} services of {ENDPOINTS} endpoints in one kube-apiserver, {} CPUs, load average {} before and {} after.\n",
        results.services,
        std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        results.load_before,
        results.load_after
    );
    println!("| what | Ballast | kube-proxy (nftables) | kube-proxy / Ballast | goal |");
    println!("|---|---:|---:|---:|---|");
    let mut rows: Vec<Row> = results.latencies.iter().flat_map(latency_rows).collect();
    rows.extend(start_rows(results));
    rows.extend(memory_rows(results));
    for Row { what, ballast, kube_proxy, ratio, goal } in rows {
        println!("| {what} | {ballast} | {kube_proxy} | {ratio} | {goal} |");
    }
    let [few, all] = results.calls_per_change;
    println!(
        "\nA change of an endpoint: {few} system calls for the tables with few services, {all} with {}.",
        results.services
    );
    println!(
        "A bare client gets both lists ({:.1} MiB) in {:.2} s.",
        mib(results.list_bytes),
        results.list_seconds.median()
    );
}

fn latency_rows(latency: &Latency) -> Vec<Row> {
    let change = match latency.change {
        ApiWrite::Endpoint => "endpoint moved",
        ApiWrite::Service => "new service",
    };
    let both = if latency.kube_proxy.is_some() { "both agents at work" } else { "Ballast alone" };
    let name = |what: &str| format!("{change}, {both}: {what} (n = {})", latency.ballast.len());
    let theirs = |share| latency.kube_proxy.as_ref().map(|samples| samples.quantile(share));
    let alone = latency.kube_proxy.is_none();
    let mut rows = vec![
        Row::against(
            name("API confirmed → first connect, p50"),
            latency.ballast.median(),
            latency.kube_proxy.as_ref().map(Samples::median),
            "ms",
            if alone { "≤ 5 ms" } else { "" },
        ),
        Row::against(
            name("same, p99"),
            latency.ballast.quantile(0.99),
            theirs(0.99),
            "ms",
            if alone { "≤ 20 ms" } else { "" },
        ),
        Row::new(name("write sent → first connect, p50"), number(latency.ballast_since_sent.median(), "ms"), ""),
        Row::new(name("the write itself, p50"), number(latency.write.median(), "ms"), ""),
        Row::new(name("API confirmed → a bare watch told, p50"), number(latency.watch.median(), "ms"), ""),
        Row::new(name("odd changes / even ones (noise)"), format!("{:.2}", latency.noise), ""),
    ];
    if let Some(ratio) = &latency.ratio {
        rows[2].ratio = format!("{:.0}", ratio.median());
    }
    rows
}

fn start_rows(results: &Results) -> Vec<Row> {
    let of = |starts: &[Start], what: &dyn Fn(&Start) -> Option<f64>| -> Option<f64> {
        let samples: Samples = starts.iter().filter_map(what).collect();
        (samples.len() > 0).then(|| samples.median())
    };
    let theirs = of(&results.kube_proxy_starts, &|start| Some(start.serves));
    let ours = |what: &dyn Fn(&Start) -> Option<f64>| of(&results.ballast_starts, what).unwrap_or(f64::NAN);
    let mut rows = vec![
        Row::against("start → connects work", ours(&|start| Some(start.serves)), theirs, "s", ""),
        Row::against("start → last map write", ours(&|start| start.written), None, "s", ""),
        Row::against("list → last map write", ours(&|start| start.list_to_written), None, "s", "≤ 1 s"),
    ];
    if let Some(most) = results.most_start {
        let seconds = |value: Option<f64>| number(value.unwrap_or(f64::NAN), "s");
        rows.push(Row::new(format!("list → last map write, {MOST} services"), seconds(most.list_to_written), "≤ 10 s"));
        rows.push(Row::new(format!("start → connects work, {MOST} services"), seconds(Some(most.serves)), ""));
    }
    rows
}

fn memory_rows(results: &Results) -> Vec<Row> {
    let [started, changed] = results.ballast_memory;
    let theirs = |of: fn(&super::Memory) -> u64| results.kube_proxy_memory.as_ref().map(|memory| mib(of(memory)));
    let many = results.amounts.many;
    let mut rows = vec![
        Row::against("resident memory", mib(started.rss), theirs(|memory| memory.rss), "MiB", "≤ 64 MiB"),
        Row::against("same, shared pages divided", mib(started.pss), theirs(|memory| memory.pss), "MiB", ""),
        Row::against(
            "of it its own, not of a file",
            mib(started.anonymous),
            theirs(|memory| memory.anonymous),
            "MiB",
            "",
        ),
        Row::against("most that was resident at the start", mib(started.peak), theirs(|memory| memory.peak), "MiB", ""),
        Row::new(
            format!("resident memory after {many} changes / before"),
            format!("{:.3}", mib(changed.rss) / mib(started.rss)),
            "≤ 1.05",
        ),
        Row::new(format!("resident memory after {many} changes"), number(mib(changed.rss), "MiB"), ""),
    ];
    if let Some(most) = results.most_memory {
        rows.push(Row::new(format!("resident memory, {MOST} services"), number(mib(most.rss), "MiB"), ""));
    }
    let kernel = results.kernel;
    rows.extend([
        Row::new("kernel memory for an IPv4 connection", number(kernel.per_connection, "B"), "≤ 176 B"),
        Row::new("flow entries for an IPv4 connection", format!("{:.2}", kernel.entries_per_connection), ""),
        Row::new("kernel memory for a service with 10 backends", number(kernel.per_service, "B"), "≤ 1 KB"),
        Row::new("same, with a Maglev table", number(kernel.per_maglev_service, "B"), "≤ 4 KB"),
        Row::new("kernel memory for a counter that counted", number(kernel.per_counter, "B"), ""),
        Row::new("kernel memory of all maps, idle", number(kernel.idle / MIB, "MiB"), ""),
    ]);
    rows
}

/// Those that have a goal.
pub fn figures(results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for latency in results.latencies.iter().filter(|latency| latency.kube_proxy.is_none()) {
        let change = if latency.change == ApiWrite::Endpoint { "endpoint moved" } else { "new service" };
        let name = format!("control: {change}, API confirmed → first connect");
        let ms = |what: &str, value| Figure::single(format!("{name}, {what}"), value, "ms", Better::Less);
        figures.push(Figure {
            interval: Some(latency.ballast.interval()),
            ..ms("p50", latency.ballast.median()).aims(6, 5.0)
        });
        figures.push(ms("p99", latency.ballast.quantile(0.99)).aims(6, 20.0));
    }
    let [few, all] = results.calls_per_change;
    let name = "control: system calls for a change, all services / few";
    figures.push(Figure::single(name, all / few, "", Better::Less).aims(6, 1.0));
    let starts: Samples = results.ballast_starts.iter().filter_map(|start| start.list_to_written).collect();
    let start = Figure::single("control: list → last map write", starts.median(), "s", Better::Less).aims(7, 1.0);
    figures.push(start);
    if let Some(most) = results.most_start {
        let seconds = most.list_to_written.unwrap_or(f64::NAN);
        let name = format!("control: list → last map write, {MOST} services");
        figures.push(Figure::single(name, seconds, "s", Better::Less).aims(7, 10.0));
    }
    let [started, changed] = results.ballast_memory;
    figures.push(Figure::single("control: resident memory", mib(started.rss), "MiB", Better::Less).aims(8, 64.0));
    let growth = mib(changed.rss) / mib(started.rss);
    let name = format!("control: resident memory after {} changes / before", results.amounts.many);
    figures.push(Figure::single(name, growth, "", Better::Less).aims(8, 1.05));
    figures
}

/// The results as JSON, with all that is behind the medians.
pub fn json(results: &Results) -> Result<Value> {
    let start = |start: &Start| {
        json!({"servesSeconds": start.serves, "writtenSeconds": start.written,
        "listToWrittenSeconds": start.list_to_written})
    };
    let starts = |starts: &[Start]| starts.iter().map(start).collect::<Vec<_>>();
    let latencies: Vec<Value> = results.latencies.iter().map(latency_json).collect();
    Ok(json!({
        "machine": machine()?,
        "loadBefore": results.load_before,
        "loadAfter": results.load_after,
        "services": results.services,
        "endpointsPerService": ENDPOINTS,
        "latencies": latencies,
        "tableCallsPerChange": {"fewServices": results.calls_per_change[0], "all": results.calls_per_change[1]},
        "starts": {
            "ballast": starts(&results.ballast_starts),
            "kubeProxy": starts(&results.kube_proxy_starts),
            "bareLists": {"seconds": quantiles(&results.list_seconds), "bytes": results.list_bytes},
            "most": {"services": MOST, "ballast": results.most_start.as_ref().map(start)},
        },
        "memoryBytes": {
            "ballast": results.ballast_memory[0],
            "ballastAfterChanges": results.ballast_memory[1],
            "changes": results.amounts.many,
            "changesPerSecond": results.changes_per_second,
            "ballastMostServices": results.most_memory,
            "kubeProxy": results.kube_proxy_memory,
        },
        "kernelMemoryBytes": results.kernel,
    }))
}

fn latency_json(latency: &Latency) -> Value {
    json!({
        "change": match latency.change { ApiWrite::Endpoint => "endpoint", ApiWrite::Service => "service" },
        "kubeProxyRuns": latency.kube_proxy.is_some(),
        "changes": latency.ballast.len(),
        "writeMilliseconds": quantiles(&latency.write),
        "confirmedToBareWatchMilliseconds": quantiles(&latency.watch),
        "confirmedToConnectMilliseconds": {
            "ballast": quantiles(&latency.ballast),
            "kubeProxy": latency.kube_proxy.as_ref().map(quantiles),
        },
        "sentToConnectMilliseconds": {"ballast": quantiles(&latency.ballast_since_sent)},
        "sentToConnectRatio": latency.ratio.as_ref().map(quantiles),
        "oddByEven": latency.noise,
    })
}

fn quantiles(samples: &Samples) -> Value {
    json!({"p50": samples.median(), "p90": samples.quantile(0.9), "p99": samples.quantile(0.99),
        "max": samples.quantile(1.0), "samples": samples.len()})
}

fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}
