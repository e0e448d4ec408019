//! Bytes as a script of packets, changes and passing time over plain tables.
#![no_main]

#[path = "../src/decide/mod.rs"]
mod decide;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = decide::play(bytes);
});
