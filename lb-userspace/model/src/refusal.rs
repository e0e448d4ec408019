//! A part of the truth that cannot be served, named, with the reason and the remedy.

use std::fmt;

/// One object, or a part of it, that is not served while all others are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

    /// Of the object; empty: it has none, as a Node.
    pub fn namespace(&self) -> &str {
        let name = self.object.split(' ').nth(1);
        name.and_then(|name| name.split_once('/')).map_or("", |(namespace, _)| namespace)
    }
}

/// So many refusals of one object are kept.
const REFUSALS_MAX: usize = 8;

/// What is refused of one object: the first few, and how many more there are.
#[derive(Debug, Default)]
pub struct Refusals {
    first: Vec<Refusal>,
    more: usize,
}

impl Refusals {
    pub fn push(&mut self, refusal: Refusal) {
        if self.first.len() < REFUSALS_MAX {
            self.first.push(refusal);
        } else {
            self.more += 1;
        }
    }

    /// At most one more than [`REFUSALS_MAX`]: the last one counts those that are left out.
    pub fn all(mut self, object: &str) -> Vec<Refusal> {
        if self.more > 0 {
            let reason = format!("{} more problems of this object", self.more);
            self.first.push(Refusal::new(object, reason, "correct those that are named; then the next ones are named"));
        }
        self.first.shrink_to_fit();
        self.first
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
    fn many_refusals_of_one_object_become_few_and_a_count() {
        let mut refusals = Refusals::default();
        for number in 0..65_000 {
            refusals.push(Refusal::new("Service default/web", format!("bad {number}"), "correct it"));
        }
        let all = refusals.all("Service default/web");
        assert_eq!((all.len(), all[0].reason.as_str()), (REFUSALS_MAX + 1, "bad 0"));
        assert_eq!(all[REFUSALS_MAX].reason, "64992 more problems of this object");
        let mut one = Refusals::default();
        one.push(Refusal::new("Service default/web", "bad", "correct it"));
        assert_eq!(one.all("Service default/web").len(), 1);
    }

    #[test]
    fn the_namespace_is_that_of_the_object() {
        for (object, namespace) in [
            ("Service default/web", "default"),
            ("Service default/web:80/TCP", "default"),
            ("EndpointSlice demo/web-1 endpoint 3", "demo"),
            ("Node n1", ""),
            ("map", ""),
        ] {
            assert_eq!(Refusal::new(object, "bad", "mend it").namespace(), namespace, "{object}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let refusal = Refusal::new("Service default/web", "é".repeat(70_000), "correct it");
        assert_eq!(refusal.object, "Service default/web");
        assert_eq!(refusal.reason, format!("{}…", "é".repeat(300)));
    }
}
