//! What the pieces take that every load balancer is made of: a look-up, an insert, a rewrite, each by a program of its own.

use anyhow::Result;
use serde::Serialize;

use super::measure::{FAMILIES, Packets, packet};
use super::runner::{Yardstick, run};
use super::subject::Subject;
use crate::statistics::Samples;

/// Packets of one piece in a round.
const PACKETS: u32 = 200;
/// What each is, its program without the family, and the packets that it is given.
const PIECES: [(&str, &str, Packets); 4] = [
    ("one look-up in a hash", "hash", Packets::Known),
    ("one look-up in an LRU hash", "foreign", Packets::Foreign),
    ("one look-up in an LRU hash, and an insert", "insert", Packets::New),
    ("one rewrite", "write", Packets::Known),
];

/// One piece.
#[derive(Clone, Debug, Serialize)]
pub struct Piece {
    pub family: &'static str,
    pub name: &'static str,
    /// Nanoseconds, less those of a program that does nothing: median of the rounds.
    pub ns: f64,
}

/// Nanoseconds of each piece in each round, by family.
#[derive(Default)]
pub struct Pieces([[Vec<f64>; PIECES.len()]; FAMILIES.len()]);

impl Pieces {
    /// One round. New packets are numbered from `new` on; returns the next number.
    pub fn measure(
        &mut self,
        at: &Subject,
        yardstick: &Yardstick,
        family: usize,
        new: u32,
        counts: bool,
    ) -> Result<u32> {
        let nothing = yardstick.program("nothing")?;
        for ((_, program, packets), samples) in PIECES.into_iter().zip(&mut self.0[family]) {
            let program = yardstick.program(&format!("{program}{}", if family == 0 { 4 } else { 6 }))?;
            let ns = at.within(|| -> Result<f64> {
                let mut times = [Vec::new(), Vec::new()];
                for number in 0..PACKETS {
                    let packet = packet(at, family, packets, number, new);
                    times[0].push(run(program, &packet)?.ns);
                    times[1].push(run(nothing, &packet)?.ns);
                }
                let [piece, nothing] = times.map(|times| times.into_iter().collect::<Samples>().median());
                Ok(piece - nothing)
            })?;
            if counts {
                samples.push(ns);
            }
        }
        Ok(new + PACKETS)
    }

    /// Medians.
    pub fn done(self) -> Vec<Piece> {
        let mut all = Vec::new();
        for (family, pieces) in FAMILIES.into_iter().zip(self.0) {
            for ((name, ..), samples) in PIECES.into_iter().zip(pieces) {
                all.push(Piece { family, name, ns: samples.into_iter().collect::<Samples>().median() });
            }
        }
        all
    }
}
