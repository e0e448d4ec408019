//! `--slot-shares`: how many of the slots a service and a namespace may take.

use super::named::{Named, NamedError};
use crate::SlotShares;

impl Named for SlotShares {
    const WHAT: &'static str = "a share of the slots";
    const WRITTEN: &'static str = "NAME=1/N, as service=1/16";

    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError> {
        let field = match name {
            "service" => &mut self.service,
            "namespace" => &mut self.namespace,
            _ => return Err(NamedError::new(name, Self::WHAT, "service or namespace")),
        };
        let parts = value.strip_prefix("1/").and_then(|parts| parts.parse().ok());
        let parts = parts.filter(|parts| (1..=Self::PARTS_MAX).contains(parts));
        *field = parts.ok_or_else(|| {
            NamedError::new(&format!("{name}={value}"), Self::WHAT, &format!("1/1 to 1/{}", Self::PARTS_MAX))
        })?;
        Ok(())
    }
}

crate::named_option!(SlotShares);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_by_name() {
        let shares: SlotShares = "service=1/8".parse().expect("valid");
        assert_eq!(shares, SlotShares { service: 8, namespace: 4 });
        let shares: SlotShares = serde_saphyr::from_str("namespace: 1/1\n").expect("a mapping does as well");
        assert_eq!(shares, SlotShares { service: 16, namespace: 1 });
        for (text, expected) in [
            ("tenant=1/4", "service or namespace"),
            ("service=16", "1/1 to 1/1024"),
            ("service=1/0", "1/1 to 1/1024"),
            ("namespace=1/1025", "1/1 to 1/1024"),
        ] {
            let error = text.parse::<SlotShares>().expect_err("wrong").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
