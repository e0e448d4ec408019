//! Bytes as a packet that a program parses.
#![no_main]

#[path = "../src/packet.rs"]
mod packet;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| packet::check(bytes));
