//! The agent and its command line from outside: a complaint or a screen out. One test binary, which links once.

mod bad_input;
mod top;
