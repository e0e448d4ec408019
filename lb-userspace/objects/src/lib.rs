//! Kubernetes' objects as far as Ballast reads them, from manifests or the API, and what of the model they become.

pub mod change;
pub mod convert;
pub mod lean;
pub mod manifest;
pub mod objects;
