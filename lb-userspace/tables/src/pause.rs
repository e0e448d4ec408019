//! A pause of a thread that has no runtime and nothing else to do.

use std::time::Duration;

/// Stops the thread for this time. Tasks use `tokio::time::sleep`.
#[expect(clippy::disallowed_methods, reason = "its callers are threads of their own and commands without a runtime")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
