//! `--allowed-annotations`: which annotations of Services count, and in which namespaces.

use std::collections::BTreeSet;

use super::ValueError;
use crate::{AllowedAnnotations, Annotation, Namespaces};

impl AllowedAnnotations {
    fn from_parts(parts: &[&str]) -> Result<Self, ValueError> {
        let parts: Vec<&str> = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            ["all"] => return Ok(Self::all()),
            ["none"] => return Ok(Self::none()),
            _ => {}
        }
        let mut allowed = Self::none();
        for part in parts {
            let wrong = |expected| ValueError { given: part.into(), what: "an annotation to allow", expected };
            let (name, namespaces) = match part.split_once('=') {
                None => (part, Namespaces::All),
                Some((name, namespaces)) => {
                    let named: BTreeSet<String> = namespaces.split('+').map(|name| name.trim().to_owned()).collect();
                    if named.contains("") {
                        return Err(wrong("NAME, or NAME=NAMESPACE+NAMESPACE, as mode=edge+web"));
                    }
                    (name.trim(), Namespaces::Named(named))
                }
            };
            let annotation = Annotation::ALL.into_iter().find(|annotation| annotation.name() == name).ok_or_else(|| {
                wrong(
                    "scheduler, weights, maglev-size, mode, drain-period, drain-max, retry, rate-limit, check, each alone or with \
                     =NAMESPACE+NAMESPACE; or all or none alone",
                )
            })?;
            allowed.allow(annotation, namespaces);
        }
        Ok(allowed)
    }
}

crate::list_option!(AllowedAnnotations, "annotations to allow, as mode=edge+web");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Scheduler, ServiceOptions};

    fn left(allowed: &AllowedAnnotations, namespace: &str) -> (Option<Mode>, Option<Scheduler>, usize) {
        let mut options =
            ServiceOptions { mode: Some(Mode::Dsr), scheduler: Some(Scheduler::Maglev), ..ServiceOptions::default() };
        let refused = allowed.restrict(&mut options, namespace, "Service x/web").len();
        (options.mode, options.scheduler, refused)
    }

    #[test]
    fn an_annotation_is_allowed_for_all_or_for_named_namespaces() {
        let allowed: AllowedAnnotations = "scheduler, mode=edge+web, mode=more".parse().expect("valid");
        for namespace in ["edge", "web", "more"] {
            assert_eq!(left(&allowed, namespace), (Some(Mode::Dsr), Some(Scheduler::Maglev), 0));
        }
        assert_eq!(left(&allowed, "other"), (None, Some(Scheduler::Maglev), 1));
        let list: AllowedAnnotations =
            serde_saphyr::from_str("[scheduler, mode=edge+web, mode=more]\n").expect("a list does as well");
        assert_eq!(list, allowed);
        assert_eq!("mode=edge,mode".parse(), "mode".parse::<AllowedAnnotations>());
        assert_eq!(left(&"all".parse().expect("valid"), "x").2, 0);
        assert_eq!(left(&"none".parse().expect("valid"), "x").2, 2);
        assert_eq!(left(&"".parse().expect("valid"), "x").2, 2);
    }

    #[test]
    fn what_is_no_annotation_of_ours_is_named_with_those_that_are() {
        for (text, expected) in [
            ("modes", "scheduler, weights, maglev-size, mode"),
            ("check-port", "scheduler, weights"),
            ("mode=", "NAME=NAMESPACE+NAMESPACE"),
            ("mode=a++b", "NAME=NAMESPACE+NAMESPACE"),
            ("all,mode", "all or none alone"),
        ] {
            let error = text.parse::<AllowedAnnotations>().expect_err("wrong").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
