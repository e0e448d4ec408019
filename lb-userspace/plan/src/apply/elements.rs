//! Elements that are written to a map together, and what became of each operation.

use std::io;

use aya::Pod;

use super::StoreError;
use lb_tables::{MapError, Table};

pub(super) type Results = Vec<Result<(), StoreError>>;

pub(super) struct Elements<K, V> {
    ops: Vec<usize>,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K, V> Default for Elements<K, V> {
    fn default() -> Self {
        Self { ops: Vec::new(), keys: Vec::new(), values: Vec::new() }
    }
}

impl<K: Pod, V: Pod> Elements<K, V> {
    pub(super) fn push(&mut self, op: usize, key: K, value: V) {
        self.ops.push(op);
        self.keys.push(key);
        self.values.push(value);
    }

    pub(super) fn write(&self, table: &Table<K, V>, results: &mut Results) {
        for (op, result) in self.ops.iter().zip(table.put_all(&self.keys, &self.values)) {
            if let Err(error) = result {
                results[*op] = Err(failed(table.name(), "writing", &error));
            }
        }
    }
}

pub(super) fn failed(map: &'static str, action: &str, error: &io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(libc::E2BIG | libc::ENOSPC) => StoreError::Full(map),
        _ => StoreError::Failed(format!("map {map}: {action} failed: {error}")),
    }
}

pub(super) fn failed_access(error: &MapError) -> StoreError {
    StoreError::Failed(error.to_string())
}
