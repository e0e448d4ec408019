//! Errors as a user reads them.

/// An error with its causes.
pub fn reason(error: &dyn std::error::Error) -> String {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        // Many errors already print their cause.
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = deeper.source();
    }
    reason
}
