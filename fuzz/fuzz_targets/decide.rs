//! Bytes as a script of packets, changes and passing time over plain tables.
#![no_main]
#![allow(clippy::unwrap_used)]

#[path = "../src/decide.rs"]
mod decide;
#[path = "../src/judge.rs"]
mod judge;
#[path = "../src/scene.rs"]
mod scene;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    decide::play(script);
});
