//! A switch on its way, and how far it is.

use std::path::PathBuf;

use tokio::{sync::oneshot, time::Instant};

use super::{folder::Folder, prepare::Begun};
use crate::{DatapathError, layout::Moved, pins::Pins};

/// What remains to be done.
#[derive(Debug)]
pub struct Switching {
    pub(super) stage: Stage,
    /// The set of this agent.
    pub(super) set: PathBuf,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Gates take the places of the old programs.
    Gating { folder: Folder, since: Instant },
    /// The new set is in force, and connections move to it.
    Moving { folder: Folder, moved: oneshot::Receiver<Result<Moved, DatapathError>> },
    /// The new programs take the places of the gates.
    Replacing,
    /// They have.
    Replaced(Instant),
}

impl Switching {
    /// The switch that was prepared, or what is left of an earlier one; `None`: nothing is.
    pub fn of(begun: Option<Begun>, pins: &Pins) -> Option<Self> {
        let since = Instant::now();
        let stage = match begun {
            Some(Begun { folder, .. }) => Stage::Gating { folder, since },
            None if Folder::all(pins.root()).is_empty() => return None,
            None => Stage::Replacing,
        };
        Some(Self { stage, set: pins.tables().to_owned() })
    }

    /// Whether connections are in both sets, or only in the old one.
    pub fn moves(&self) -> bool {
        matches!(self.stage, Stage::Gating { .. } | Stage::Moving { .. })
    }

    /// The folder, while gates are put in place.
    pub(super) fn folder(&self) -> Option<&Folder> {
        match &self.stage {
            Stage::Gating { folder, .. } | Stage::Moving { folder, .. } => Some(folder),
            Stage::Replacing | Stage::Replaced(_) => None,
        }
    }
}

/// Waits until everything is moved, for ever if nothing moves.
pub async fn moved(switching: &mut Option<Switching>) -> Result<Moved, DatapathError> {
    match switching {
        Some(Switching { stage: Stage::Moving { moved, .. }, .. }) => moved.await.unwrap_or_else(|_| {
            Err(DatapathError::BadObject { reason: "the thread that moves connections is gone".into() })
        }),
        _ => std::future::pending().await,
    }
}
