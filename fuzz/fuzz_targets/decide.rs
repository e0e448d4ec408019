//! Bytes as a script of packets, changes and passing time over plain tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = lb_common::plain::script::play(bytes);
});
