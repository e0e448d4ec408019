//! Kubernetes' objects as far as Ballast reads them, from manifests or the API, and what of the model they become.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod change;
pub mod convert;
pub mod lean;
pub mod manifest;
pub mod objects;
