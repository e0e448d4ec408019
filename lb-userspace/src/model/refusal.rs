//! A part of the truth that cannot be served, named, with the reason and the remedy.

use std::fmt;

/// One object, or a part of it, that is not served while all others are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Refusal {
    /// What is refused, as `Service default/web`.
    pub object: String,
    pub reason: String,
    pub remedy: String,
}

impl Refusal {
    pub fn new(object: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { object: object.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.reason, self.remedy)
    }
}
