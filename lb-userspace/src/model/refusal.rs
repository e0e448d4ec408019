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

/// Longest object and reason that are shown, in characters: both quote what the object says.
const SHOWN_MAX: usize = 300;

impl Refusal {
    /// `object` and `reason` are cut to 300 characters.
    pub fn new(object: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { object: shortened(object.into()), reason: shortened(reason.into()), remedy: remedy.into() }
    }
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(SHOWN_MAX) {
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.reason, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let refusal = Refusal::new("Service default/web", "é".repeat(70_000), "correct it");
        assert_eq!(refusal.object, "Service default/web");
        assert_eq!(refusal.reason, format!("{}…", "é".repeat(300)));
    }
}
