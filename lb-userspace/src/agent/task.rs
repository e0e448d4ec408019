//! Tasks that run beside the loop.

use tokio_util::task::AbortOnDropHandle;

/// Ends when it is dropped.
pub(super) type Task = AbortOnDropHandle<()>;

pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Task {
    AbortOnDropHandle::new(tokio::spawn(task))
}
