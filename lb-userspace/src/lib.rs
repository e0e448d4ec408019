//! Ballast
