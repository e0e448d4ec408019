//! Carries operations out, many changes at a time, in an order that is safe for readers. The programmed state stays true after
//! any failed write.

use std::{collections::BTreeMap, time::Duration};

use super::{Report, Store, StoreError, pending::Retry, subject::Subject};
use crate::plan::{Op, ProgrammedState};
use lb_model::{Monotonic, ObjectName, PortKey, Protocol};

/// The operations of one change, in order.
#[derive(Debug)]
pub(super) struct OpSequence {
    pub subject: Subject,
    pub ops: Vec<Op>,
    /// The service port that owns the backends, frontends and so on, for the programmed state.
    pub owner: Option<PortKey>,
    /// When it was to be tried again, if it failed or found no room before.
    pub before: Option<Retry>,
}

/// The tables and their programmed state.
#[derive(Debug)]
pub(super) struct Writer<S> {
    pub store: S,
    pub programmed: ProgrammedState,
    /// How long slots that no frontend leads to are not written again.
    pub grace: Duration,
}

impl<S: Store> Writer<S> {
    /// Sets aside what a change needs, so that the next one is planned beside it.
    pub fn reserve(&mut self, change: &OpSequence) {
        self.programmed.reserve(&change.ops);
    }

    /// Carries reserved changes out: step by step, all of them together, so that each step is few system calls. A change ends
    /// at its first failure, as what follows may depend on it; the others go on. Returns the changes that failed, and why.
    pub fn write(
        &mut self,
        changes: Vec<OpSequence>,
        now: Monotonic,
        report: &mut Report,
    ) -> Vec<(OpSequence, String)> {
        // For each change how far it has come, and whether it goes on.
        let mut state: Vec<(usize, bool)> = vec![(0, true); changes.len()];
        let mut reasons: BTreeMap<usize, String> = BTreeMap::new();
        while let Some(rank) = next_rank(&changes, &state) {
            let mut step: Vec<(usize, &Op)> = Vec::new();
            for (index, change) in changes.iter().enumerate() {
                let (from, goes_on) = state[index];
                let ops = change.ops[from..].iter().take_while(|op| goes_on && op.rank() == rank);
                step.extend(ops.map(|op| (index, op)));
            }
            let ops: Vec<&Op> = step.iter().map(|(_, op)| *op).collect();
            let results = self.store.apply_all(&ops);
            for ((index, op), result) in step.into_iter().zip(results) {
                let change = &changes[index];
                state[index].0 += 1;
                match result {
                    Ok(()) => {
                        self.record(change.owner.as_ref(), op, now);
                        report.writes += 1;
                    }
                    Err(error) => {
                        self.programmed.give_up(op);
                        state[index].1 = false;
                        report.failed_writes += 1;
                        reasons.entry(index).or_insert_with(|| format!("{}: {op}: {error}", change.subject));
                    }
                }
            }
        }
        let mut failed = Vec::new();
        for (index, (change, (done, _))) in changes.into_iter().zip(state).enumerate() {
            if let Some(reason) = reasons.remove(&index) {
                change.ops[done..].iter().for_each(|op| self.programmed.give_up(op));
                failed.push((change, reason));
            }
        }
        failed
    }

    /// Notes what the tables hold. No write of the tables, so it is not counted as one.
    pub fn note(&mut self, config: &Op) -> Result<(), StoreError> {
        self.store.apply(config)?;
        self.programmed.record_global(config);
        Ok(())
    }

    /// Takes down that an id is free which somebody else had used.
    pub fn note_free(&mut self, free: &Op, now: Monotonic) {
        let nobody = PortKey { service: ObjectName::new("", ""), port: 0, protocol: Protocol::Tcp };
        self.programmed.record(&nobody, free, now, self.grace);
    }

    fn record(&mut self, owner: Option<&PortKey>, op: &Op, now: Monotonic) {
        match owner {
            Some(key) => self.programmed.record(key, op, now, self.grace),
            None => self.programmed.record_global(op),
        }
    }
}

/// The first step that some change has still before it.
fn next_rank(changes: &[OpSequence], state: &[(usize, bool)]) -> Option<u8> {
    let going_on = changes.iter().zip(state).filter(|(_, (_, goes_on))| *goes_on);
    going_on.filter_map(|(change, (done, _))| change.ops.get(*done)).map(Op::rank).min()
}
