//! The plan and its writer from outside: objects in, tables out. One test binary, which links once.

mod convergence;
mod hostile_objects;
mod large_services;
mod overlaps;
mod plan_model;
mod scenarios;
mod tenants;
