//! Bytes as a packet that a program parses.
#![no_main]

#[path = "../src/packet.rs"]
mod packet;
#[allow(dead_code)]
#[path = "../../lb-ebpf/src/parse.rs"]
mod parse;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| packet::check(bytes));
