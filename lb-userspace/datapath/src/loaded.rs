//! A program in the kernel, and what became of those that were to get there.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use aya::programs::ProgramInfo;

use super::DatapathError;

/// A program in the kernel.
#[derive(Debug)]
pub(super) struct Loaded {
    descriptor: OwnedFd,
    pub id: u32,
    /// Instructions that the verifier walked; 0: the kernel does not say (before 5.16).
    pub verified_instructions: u32,
    /// Size of the machine code in bytes.
    pub jited_bytes: u32,
}

impl Loaded {
    pub fn new(info: &ProgramInfo, descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            id: info.id(),
            verified_instructions: info.verified_instruction_count().unwrap_or(0),
            jited_bytes: info.size_jitted(),
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What became of each program.
pub(super) type Outcomes = Vec<(&'static str, Result<Loaded, DatapathError>)>;
