//! The result for people.

use super::comparison::Row;
use super::tables::Full;

/// Prints tables.
pub fn print(rows: &[Row], full: &[Full]) {
    println!("| what | how | | ratio | 95 % |\n|---|---|---:|---:|---:|");
    for row in rows {
        let [low, high] = row.interval;
        println!(
            "| {} | {} | {:.1} {} | {:.2} | {low:.2} – {high:.2} |",
            row.what, row.arm, row.value, row.unit, row.ratio
        );
    }
    println!(
        "\nSingle inserts into a full table, ns; what is kept of flows that fill a half, and three quarters, from one CPU.\n"
    );
    println!("| family | table | other CPU | median | p99 | p99.9 | half | three quarters |");
    println!("|---|---|---|---:|---:|---:|---:|---:|");
    for full in full {
        println!(
            "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.1} % | {:.1} % |",
            full.family,
            full.table,
            if full.beside_another { "the same" } else { "" },
            full.median_ns,
            full.p99_ns,
            full.p999_ns,
            full.kept_of_half * 100.0,
            full.kept_of_three_quarters * 100.0
        );
    }
}
