//! What an audit found, in the terms of a user.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// How an entry differs from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// It is not there.
    Missing,
    /// Nobody wrote it.
    Foreign,
    /// It holds something else.
    Edited,
    /// Its parts do not belong together: half of it is another entry's.
    Torn,
    /// What is written is not what is wanted, and nothing was waiting to be done about it.
    Behind,
}

impl FindingKind {
    pub const ALL: [Self; 5] = [Self::Missing, Self::Foreign, Self::Edited, Self::Torn, Self::Behind];

    /// As in metrics and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Edited => "edited",
            Self::Torn => "torn",
            Self::Behind => "behind",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub kind: FindingKind,
    /// Name of the map; `attachments` for a program's place, `plan` for what was not written.
    pub table: String,
    /// The entry: a frontend, a backend, a slot, an address.
    pub entry: String,
    /// The service port that it belongs to, where one is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// What differs; empty: the whole entry.
    pub difference: String,
    /// It was put right.
    #[serde(default)]
    pub repaired: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.table, self.entry, self.kind)?;
        if let Some(service) = &self.service {
            write!(f, " (Service {service})")?;
        }
        if !self.difference.is_empty() {
            write!(f, ", {}", self.difference)?;
        }
        Ok(())
    }
}

/// Result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuditReport {
    /// Nothing was repaired, on purpose.
    pub dry_run: bool,
    /// How many entries were compared.
    pub checked: usize,
    pub findings: Vec<Finding>,
    /// What could not be read or put right.
    pub failures: Vec<String>,
}

impl AuditReport {
    /// How many findings there are, by table and kind.
    pub fn counts(&self) -> BTreeMap<(&str, FindingKind), u64> {
        count(self.findings.iter())
    }

    /// How many of them were put right, likewise.
    pub fn repairs(&self) -> BTreeMap<(&str, FindingKind), u64> {
        count(self.findings.iter().filter(|finding| finding.repaired))
    }

    /// How many were put right.
    pub fn repaired(&self) -> usize {
        self.findings.iter().filter(|finding| finding.repaired).count()
    }
}

fn count<'a>(findings: impl Iterator<Item = &'a Finding>) -> BTreeMap<(&'a str, FindingKind), u64> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry((finding.table.as_str(), finding.kind)).or_default() += 1;
    }
    counts
}
