//! The iptables before nf_tables: its tables are read and changed by its own programs, and searched without them.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
};

use super::kube_proxy::{self, Chain, Removal, Rule};
use lb_netlink::Family;

/// Of include/uapi/linux/netfilter_ipv4/ip_tables.h, and the same numbers of IPv6.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const NAME_LENGTH: usize = 32;
/// `struct ipt_getinfo`: the name, ten hook words and their mask, count and size.
const INFO_LENGTH: usize = NAME_LENGTH + 4 + 5 * 4 + 5 * 4 + 4 + 4;
/// Chains of kube-proxy, one of which is in each table that it writes to.
const CHAINS: [&str; 5] = ["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-FORWARD", "KUBE-PROXY-CANARY", "KUBE-MARK-MASQ"];
/// `struct ipt_get_entries` before its entries.
const ENTRIES_HEADER: usize = NAME_LENGTH + 8;

/// A table of the old iptables in which chains of kube-proxy are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub family: Family,
    pub table: String,
}

impl Found {
    pub fn text(&self) -> String {
        format!("{} {}", program(self.family, ""), self.table)
    }
}

/// The tables that have chains of kube-proxy.
pub fn find() -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for family in Family::ALL {
        for table in tables(family)? {
            if has_chains(&entries(family, &table)?, &CHAINS) {
                found.push(Found { family, table });
            }
        }
    }
    Ok(found)
}

/// Names of the tables that this network namespace has.
fn tables(family: Family) -> io::Result<Vec<String>> {
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(path) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        // The module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes the chains, and the jumps to them. Names what it removed, and what it kept. `None`: the programs are not here.
///
/// `kubelet`: one has rules on this node, too.
pub fn remove(found: &Found, kubelet: bool, dry_run: bool) -> io::Result<Option<(Vec<String>, Vec<String>)>> {
    let Some(prefix) = programs(found.family) else { return Ok(None) };
    let mut save = Command::new(format!("{prefix}-save"));
    let saved = save.args(["-t", &found.table]).stderr(Stdio::null()).output()?;
    let saved = String::from_utf8_lossy(&saved.stdout);
    let (script, removed, kept) = script(&found.table, kubelet, &saved);
    let name = program(found.family, "");
    let removed = kube_proxy::summary(removed.iter().map(String::as_str));
    let removed = removed.into_iter().map(|chain| format!("{name} {} {chain}", found.table)).collect();
    if !dry_run && !script.is_empty() {
        let mut restore = Command::new(format!("{prefix}-restore"));
        let mut restore = restore.args(["-w", "--noflush"]).stdin(Stdio::piped()).spawn()?;
        if let Some(mut input) = restore.stdin.take() {
            input.write_all(script.as_bytes())?;
        }
        let status = restore.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("{prefix}-restore ended with {status}")));
        }
    }
    Ok(Some((removed, kept)))
}

/// The program that works on the old tables, without its ending.
fn programs(family: Family) -> Option<String> {
    let legacy = program(family, "-legacy");
    let version = |program: &str| {
        let output = Command::new(format!("{program}-save")).arg("--version").stderr(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if version(&legacy).is_some() {
        return Some(legacy);
    }
    let plain = program(family, "");
    version(&plain).filter(|text| !text.contains("nf_tables")).map(|_| plain)
}

fn program(family: Family, ending: &str) -> String {
    let name = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{name}{ending}")
}

/// The input of `iptables-restore --noflush` that removes them, the chains that it removes, and what stays.
fn script(table: &str, kubelet: bool, saved: &str) -> (String, Vec<String>, Vec<String>) {
    let chains: Vec<Chain<'_>> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split_once(' '))
        .map(|(name, rest)| Chain { name, base: !rest.starts_with("- ") })
        .collect();
    let lines: Vec<(&str, Vec<String>)> = saved.lines().filter_map(|line| Some((line, targets(line)?))).collect();
    let rules: Vec<Rule<'_, &str>> = lines
        .iter()
        .filter_map(|(line, leads_to)| {
            let chain = line.strip_prefix("-A ")?.split(' ').next()?;
            Some(Rule { chain, leads_to, id: *line })
        })
        .collect();
    let removal = Removal::of(table, kubelet, &chains, &rules);
    let kept = removal.kept.iter().map(|(chain, by)| format!("{table} {chain}: {by} uses it")).collect();
    if removal.is_empty() {
        return (String::new(), Vec::new(), kept);
    }
    let declared = removal.chains.iter().map(|chain| format!(":{chain} - [0:0]\n"));
    let jumps = removal.jumps.iter().map(|rule| format!("-D{}\n", rule.id.trim_start_matches("-A")));
    let deleted = removal.chains.iter().map(|chain| format!("-X {chain}\n"));
    let script = declared.chain(jumps).chain(deleted).collect::<String>();
    let removed = removal.chains.iter().map(|chain| (*chain).to_owned()).collect();
    (format!("*{table}\n{script}COMMIT\n"), removed, kept)
}

/// What a rule leads to; `None`: the line is no rule.
fn targets(line: &str) -> Option<Vec<String>> {
    let rest = line.strip_prefix("-A ")?;
    // What is quoted is a comment or a text to match.
    let plain = rest.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let mut words = plain.split_whitespace();
    let mut targets = Vec::new();
    while let Some(word) = words.next() {
        if matches!(word, "-j" | "-g") {
            targets.extend(words.next().map(str::to_owned));
        }
    }
    Some(targets)
}

/// Whether the kubelet has rules of the family in the old iptables.
pub fn has_kubelet(family: Family) -> bool {
    entries(family, "mangle").is_ok_and(|entries| has_chains(&entries, &[kube_proxy::KUBELETS]))
}

/// Whether the old iptables leads to services of the family.
pub fn serves(family: Family) -> bool {
    let prefix = kube_proxy::SERVICE_PREFIX.as_bytes();
    entries(family, "nat").is_ok_and(|entries| entries.windows(prefix.len()).any(|window| window == prefix))
}

/// Whether the entries name one of these chains. Each chain begins with an entry that holds its name.
fn has_chains(entries: &[u8], names: &[&str]) -> bool {
    let is_there = |name: &[u8]| entries.windows(name.len()).any(|window| window == name);
    names.iter().any(|name| is_there(&[name.as_bytes(), &[0]].concat()))
}

/// The entries of a table, as the kernel holds them; none, if there is no such table.
///
/// The kernel makes a table that it is asked for (`xt_find_table_lock` in net/netfilter/x_tables.c, Linux 6.18), and every forwarded packet
/// then meets it.
fn entries(family: Family, table: &str) -> io::Result<Vec<u8>> {
    if !tables(family)?.iter().any(|name| name == table) {
        return Ok(Vec::new());
    }
    let (domain, level) = match family {
        Family::V4 => (socket2::Domain::IPV4, libc::SOL_IP),
        Family::V6 => (socket2::Domain::IPV6, libc::SOL_IPV6),
    };
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    let mut info = named(table, INFO_LENGTH);
    read(&socket, level, GET_INFO, &mut info)?;
    let size: [u8; 4] = info[INFO_LENGTH - 4..].try_into().map_err(io::Error::other)?;
    let size = usize::try_from(u32::from_ne_bytes(size)).map_err(io::Error::other)?;
    let mut entries = named(table, ENTRIES_HEADER + size);
    entries[NAME_LENGTH..NAME_LENGTH + 4].copy_from_slice(&u32::try_from(size).unwrap_or_default().to_ne_bytes());
    read(&socket, level, GET_ENTRIES, &mut entries)?;
    Ok(entries.split_off(ENTRIES_HEADER))
}

/// A buffer that begins with the name of a table.
fn named(table: &str, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = table.bytes().take(NAME_LENGTH - 1).collect();
    bytes.resize(length, 0);
    bytes
}

fn read(socket: &socket2::Socket, level: libc::c_int, what: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes at most `length` bytes of the buffer, which lives across the call.
    let read =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, what, buffer.as_mut_ptr().cast(), &raw mut length) };
    if read == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:MINE - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES" -j MINE
-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-A
COMMIT
"#;

    #[test]
    fn the_script_removes_jumps_and_chains_and_names_nothing_else() {
        let (script, removed, kept) = script("nat", true, SAVED);
        let expected = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n\
            -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -X KUBE-SERVICES\n-X KUBE-SVC-A\nCOMMIT\n";
        assert_eq!(script, expected);
        assert_eq!((removed.len(), kept.len()), (2, 0));
        let clean = SAVED.lines().filter(|line| !line.contains("KUBE-SERVICES") && !line.contains("SVC"));
        assert_eq!(super::script("nat", true, &clean.collect::<Vec<_>>().join("\n")).0, "");
    }
}
