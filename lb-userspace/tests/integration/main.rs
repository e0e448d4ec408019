//! The agent's library and its binary from outside: objects in, tables or a complaint out. One test binary, which links once.

mod bad_input;
mod convergence;
mod hostile_objects;
mod large_services;
mod overlaps;
mod plan_model;
mod scenarios;
mod tenants;
mod top;
