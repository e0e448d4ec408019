//! Logs: tracing as text or JSON on standard error; records of the `log` crate (the programs' own log) join them.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, fmt, registry};

use crate::config::{LogFormat, LogLevel};

/// Starts logging for the process.
///
/// Libraries below warnings say nothing to an operator, so only Ballast's own messages follow `level`. Those of the programs
/// follow `programs`, the level at which they were loaded: aya-log names the program's module as target.
pub fn start(format: LogFormat, level: LogLevel, programs: LogLevel) -> anyhow::Result<()> {
    let filter = Targets::new()
        .with_default(filter(level).min(LevelFilter::WARN))
        // All crates of this workspace.
        .with_target("lb_", filter(level))
        .with_target("ballast", filter(programs))
        // It logs each failed request as an error; the source logs them, once and with the reason.
        .with_target("kube_client", LevelFilter::OFF);
    // This also bridges records of the `log` crate.
    match format {
        LogFormat::Text => {
            let layer = fmt::layer().with_target(false).with_writer(std::io::stderr);
            registry().with(layer.with_ansi(false).with_filter(filter)).try_init()?;
        }
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
            registry().with(layer.with_filter(filter)).try_init()?;
        }
    }
    Ok(())
}

const fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
