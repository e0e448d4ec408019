//! Series of the agent's process, under the names that all client libraries of Prometheus use.

use super::{MetricKind, Series, optional, precise, series};
use crate::observe::process::ProcessReading;

/// Without points where nothing was read.
pub fn of_process(process: Option<&ProcessReading>) -> Vec<Series> {
    let value = |name, help, of: fn(&ProcessReading) -> f64| optional(name, help, process.map(of));
    vec![
        series(
            "process_cpu_seconds",
            "Seconds that the agent has spent on a CPU, in user and kernel mode",
            MetricKind::Counter,
            process.map(|process| (Vec::new(), process.cpu_seconds)).into_iter().collect(),
        ),
        value(
            "process_resident_memory_bytes",
            "Resident memory of the agent in bytes; maps and programs in the kernel are not in it",
            |process| precise(process.resident_bytes),
        ),
        value("process_virtual_memory_bytes", "Virtual memory of the agent in bytes", |process| {
            precise(process.virtual_bytes)
        }),
        value("process_open_fds", "Descriptors that the agent has open", |process| precise(process.open_fds)),
        optional(
            "process_max_fds",
            "Descriptors that the agent may have open",
            process.and_then(|process| process.max_fds).map(precise),
        ),
        value("process_start_time_seconds", "When the agent started, in seconds since the epoch", |process| {
            process.start_seconds
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(reading: Option<&ProcessReading>) -> Vec<(&'static str, f64)> {
        let all = of_process(reading);
        all.iter().filter_map(|series| Some((series.name, series.points.first()?.1))).collect()
    }

    #[test]
    fn units_are_seconds_and_bytes() {
        let reading = ProcessReading {
            cpu_seconds: 1.25,
            resident_bytes: 4096,
            virtual_bytes: 8192,
            open_fds: 7,
            max_fds: Some(1024),
            start_seconds: 1_700_000_000.5,
        };
        let expected = [
            ("process_cpu_seconds", 1.25),
            ("process_resident_memory_bytes", 4096.0),
            ("process_virtual_memory_bytes", 8192.0),
            ("process_open_fds", 7.0),
            ("process_max_fds", 1024.0),
            ("process_start_time_seconds", 1_700_000_000.5),
        ];
        assert_eq!(points(Some(&reading)), expected);
    }

    #[test]
    fn what_could_not_be_read_has_no_value() {
        assert_eq!(points(None), []);
        let unlimited = points(Some(&ProcessReading::default()));
        assert!(unlimited.iter().all(|(name, _)| *name != "process_max_fds"), "{unlimited:?}");
    }
}
