//! Secrets in what is collected. None is expected there: the commands print none. This is the second line.

use std::sync::LazyLock;

use regex::Regex;

/// What a secret looks like, and what stays of it.
static SECRETS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let patterns = [
        // The user part of a URL.
        (r#"://[^/@\s"']+@"#, "://REDACTED@"),
        // JSON Web Tokens, as service accounts have them.
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", "REDACTED"),
        (r"(?i)\b(bearer\s+)[^\s,]+", "${1}REDACTED"),
        (r#"(?i)\b((?:[a-z]+[-_])?(?:token|password|passwd|secret)["']?\s*[=:]\s*["']?)[^\s"',}]+"#, "${1}REDACTED"),
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", "REDACTED"),
    ];
    patterns.into_iter().filter_map(|(pattern, rest)| Some((Regex::new(pattern).ok()?, rest))).collect()
});

/// The text without secrets: tokens, passwords, private keys, and the user part of URLs.
pub fn redacted(text: &str) -> String {
    SECRETS.iter().fold(text.to_owned(), |text, (secret, rest)| match secret.replace_all(&text, *rest) {
        std::borrow::Cow::Borrowed(_) => text,
        std::borrow::Cow::Owned(text) => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced() {
        assert_eq!(SECRETS.len(), 5, "every pattern is valid");
        for (secret, shown) in [
            ("--api-server=https://admin:hunter2@10.0.0.1:6443", "--api-server=https://REDACTED@10.0.0.1:6443"),
            ("a eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln b", "a REDACTED b"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer REDACTED"),
            (r#"{"token": "abc", "name": "web"}"#, r#"{"token": "REDACTED", "name": "web"}"#),
            ("--bootstrap-token=abc --x=1", "--bootstrap-token=REDACTED --x=1"),
            ("password: abc\nuser: me", "password: REDACTED\nuser: me"),
            ("a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb", "a\nREDACTED\nb"),
        ] {
            assert_eq!(redacted(secret), shown);
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            r#"{"service": "default/token-service", "frontend": "10.96.0.10:80"}"#,
            "https://10.0.0.1:6443/api",
            "ballast_flows{state=\"open\"} 7",
            "tokens of a bucket",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
