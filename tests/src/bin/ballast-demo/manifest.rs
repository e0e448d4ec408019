//! The demo's copy of the sample manifest, changed as text, so that it stays a file that a person reads and edits.

use std::net::IpAddr;

/// How an endpoint begins: it has a line to itself.
const ENDPOINT: &str = "  - {addresses: [";

/// Takes out every endpoint with one of these addresses.
pub fn without(manifest: &str, addresses: &[IpAddr]) -> String {
    let gone = |line: &&str| {
        let named = |address: &IpAddr| line.contains(&format!("\"{address}\""));
        line.starts_with(ENDPOINT) && addresses.iter().any(named)
    };
    manifest.split_inclusive('\n').filter(|line| !gone(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../../../deploy/sample.yaml");

    #[test]
    fn a_pod_leaves_both_families_and_nothing_else_changes() {
        let pod = ["10.244.1.2".parse().expect("an address"), "fd00:244:1::2".parse().expect("an address")];
        let changed = without(SAMPLE, &pod);
        assert!(!changed.contains("10.244.1.2\"") && !changed.contains("fd00:244:1::2\""));
        // TCP and UDP, in each family.
        assert_eq!(SAMPLE.lines().count() - changed.lines().count(), 4);
        assert_eq!(without(SAMPLE, &[]), SAMPLE);
    }
}
