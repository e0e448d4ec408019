//! `ballast sysdump`: all that is worth knowing of this node, in one archive. It only reads, and an item that fails leaves its error in the index.

mod archive;
mod item;
mod redact;

use std::fmt::Write as _;
use std::io::Write;

use archive::Archive;
pub use item::Locations;
use item::{ITEM_BYTES_MAX, Item, Source};
pub use redact::redacted;

/// The list of all files, the first one in the archive.
const INDEX: &str = "INDEX.txt";

/// Commands of this program, by the names of their files. Each takes the folders of the agent.
const COMMANDS: [(&str, &[&str]); 9] = [
    ("version.txt", &["version"]),
    ("status.txt", &["status"]),
    ("status.json", &["status", "-o", "json"]),
    ("services.json", &["get", "services", "-A", "-o", "json"]),
    ("backends.json", &["get", "backends", "-A", "-o", "json"]),
    ("drains.json", &["get", "drains", "-A", "-o", "json"]),
    ("connections.json", &["get", "connections", "-A", "-o", "json"]),
    ("audit.json", &["audit", "--dry-run", "-o", "json"]),
    ("doctor.json", &["doctor", "-o", "json"]),
];

/// Files of the kernel.
const FILES: [&str; 21] = [
    "/proc/version",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/mounts",
    "/proc/net/dev",
    "/proc/net/route",
    "/proc/net/ipv6_route",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    "/proc/net/netstat",
    "/proc/net/sockstat",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/conf/all/rp_filter",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/ip_local_reserved_ports",
    "/proc/sys/net/ipv6/conf/all/forwarding",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/net/netfilter/nf_conntrack_max",
];

fn items(settings: &Locations) -> Vec<Item> {
    let commands = COMMANDS.map(|(name, arguments)| Item { name: name.to_owned(), source: Source::Command(arguments) });
    let files = FILES.map(|path| {
        let name = format!("kernel/{}.txt", path.trim_start_matches("/proc/").replace('/', "-"));
        Item { name, source: Source::File(path) }
    });
    let others = [
        ("metrics.txt", Source::Metrics(settings.metrics)),
        ("kernel/bpf-programs.txt", Source::Programs),
        ("kernel/bpf-maps.txt", Source::Maps),
        ("processes.txt", Source::Processes),
    ];
    let others = others.map(|(name, source)| Item { name: name.to_owned(), source });
    commands.into_iter().chain(others).chain(files).collect()
}

/// Writes the archive, a gzipped tar whose files lie in `folder`. `made_s`: now, in seconds since 1970. `progress` gets each item before it is read. Returns how many failed.
///
/// Secrets are removed: see [`redacted`].
pub fn write(
    settings: &Locations,
    folder: &str,
    made_s: u64,
    to: impl Write,
    mut progress: impl FnMut(&str),
) -> std::io::Result<usize> {
    let (mut files, mut index, mut failed) = (Vec::new(), String::new(), 0);
    index.push_str("All files of this archive: bytes, name, where it comes from, and what went wrong.\n");
    index.push_str("Tokens, passwords, private keys and the user part of URLs are replaced by REDACTED.\n\n");
    for item in items(settings) {
        progress(&item.name);
        let read = item.read(settings);
        let mut bytes = redacted(&String::from_utf8_lossy(&read.bytes)).into_bytes();
        let mut problem = read.problem;
        if bytes.len() > ITEM_BYTES_MAX {
            bytes.truncate(ITEM_BYTES_MAX);
            problem = Some(format!("cut after {ITEM_BYTES_MAX} bytes"));
        }
        failed += usize::from(problem.is_some());
        let problem = problem.map(|problem| format!("  ({})", redacted(&problem))).unwrap_or_default();
        // A text takes all.
        let _ = writeln!(index, "{:>10}  {}  {}{problem}", bytes.len(), item.name, item.source);
        files.push((item.name, bytes));
    }
    let mut archive = Archive::new(folder, made_s, to);
    archive.file(INDEX, index.as_bytes())?;
    for (name, bytes) in &files {
        archive.file(name, bytes)?;
    }
    archive.finish()?;
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn each_item_has_a_name_of_its_own() {
        let settings =
            Locations { bpffs: "/b".into(), run_dir: "/r".into(), metrics: SocketAddr::from(([127, 0, 0, 1], 10249)) };
        let items = items(&settings);
        let names: BTreeSet<_> = items.iter().map(|item| &item.name).collect();
        assert_eq!(names.len(), items.len());
        assert!(!names.contains(&INDEX.to_owned()));
    }
}
