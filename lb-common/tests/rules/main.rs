//! What the decision does, rule by rule, over plain tables. One binary, which a mutant builds in seconds.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod adopted;
mod adoption;
mod affinity;
mod affinity_timeout;
mod answers;
mod beside;
mod checksum;
mod cidr_cover;
mod clients;
mod closing;
mod connect_times;
mod crc32c;
mod decide;
mod drains;
mod egress_ports;
mod ejection;
mod ends;
mod flood;
mod hand_over;
mod host_sockets;
mod lifetimes;
mod lives;
mod openings;
mod outside;
mod rare;
mod rate;
mod retries;
mod schedulers;
mod second_handshakes;
mod service_cidrs;
mod shares;
mod tunnel;
mod tuples;
mod vip;
mod vip_filter;
mod words;
