//! Bounds how many lines of one kind reach the log: an event of many at once is logged for some, with the number of the others.

use std::time::Duration;

use tokio::time::Instant;

/// So many lines in each [`WINDOW`].
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// Lines of one kind.
#[derive(Debug, Default)]
pub(super) struct LogBound {
    /// When the window began, and how many lines it has.
    window: Option<(Instant, u32)>,
    unsaid: u64,
}

impl LogBound {
    /// Whether a line may be written now; then, how many could not be since the last one.
    pub fn admits(&mut self, now: Instant) -> Option<u64> {
        let lines = match self.window {
            Some((began, lines)) if now.saturating_duration_since(began) < WINDOW => lines,
            _ => {
                self.window = Some((now, 0));
                0
            }
        };
        if lines >= LINES {
            self.unsaid += 1;
            return None;
        }
        self.window = self.window.map(|(began, lines)| (began, lines + 1));
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_told_by_some_lines_and_a_number() {
        let (mut bound, start) = (LogBound::default(), Instant::now());
        let written = (0..1_000).filter(|_| bound.admits(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(bound.admits(start + WINDOW), Some(990));
        assert_eq!(bound.admits(start + WINDOW), Some(0));
    }
}
