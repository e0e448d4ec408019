//! Who may ask: each bearer token is shown to the API server once (TokenReview), then its user's right to the path (SubjectAccessReview).
//!
//! Answers hold for a short time. Their number is bounded, and so is the number of questions in a second: no flood of tokens becomes a load for the
//! API server. A review that fails admits nobody.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout};

use super::AUDIENCE;

/// How long a right that was granted holds: so long a token works after it was revoked.
pub const GRANTED_FOR: Duration = Duration::from_mins(1);
/// How long a refusal holds.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How many answers are remembered.
const REMEMBERED_MAX: usize = 256;
/// How many reviews there may be at once, and then in each second.
const REVIEWS_AT_ONCE: u32 = 20;
const REVIEWS_PER_SECOND: f64 = 5.0;
/// How long the API server may take for both questions. Shorter than the 5 s that `kubectl ballast` waits for a
/// node, so that it gets the refusal, and the failure is counted.
const REVIEW_LIMIT: Duration = Duration::from_secs(3);
/// The longest token.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a bearer token is needed")]
    NoToken,
    #[error("the token is not for the audience {AUDIENCE}: request one of a ServiceAccount with this audience")]
    OtherAudience,
    #[error("the API server does not accept the token: {0}")]
    NotAuthenticated(String),
    #[error("{user} may not get {path}: grant this non-resource URL to it")]
    Denied { user: String, path: String },
    #[error("too many tokens were shown: ask again in a second")]
    TooMany,
    #[error("the API server does not say who this is, so nobody is let in: {0}")]
    NotReviewed(String),
}

impl Refused {
    /// HTTP status.
    pub fn status(&self) -> http::StatusCode {
        match self {
            Self::NoToken | Self::OtherAudience | Self::NotAuthenticated(_) => http::StatusCode::UNAUTHORIZED,
            Self::Denied { .. } => http::StatusCode::FORBIDDEN,
            Self::TooMany => http::StatusCode::TOO_MANY_REQUESTS,
            Self::NotReviewed(_) => http::StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Asks the API server, and remembers its answers.
pub struct Reviewer {
    api: Client,
    memory: Mutex<Memory>,
}

type Key = [u8; 32];
type Answer = Result<(), Refused>;

struct Memory {
    answers: HashMap<Key, (Answer, Instant)>,
    /// Reviews that may begin now.
    allowance: f64,
    counted: Instant,
}

impl Reviewer {
    pub fn new(api: Client) -> Self {
        let memory = Memory { answers: HashMap::new(), allowance: f64::from(REVIEWS_AT_ONCE), counted: Instant::now() };
        Self { api, memory: Mutex::new(memory) }
    }

    /// Whether the owner of the token may get `path`.
    pub async fn admit(&self, token: Option<&str>, path: &str) -> Answer {
        let token = token.filter(|token| !token.is_empty()).ok_or(Refused::NoToken)?;
        if token.len() > TOKEN_BYTES_MAX || !names_audience(token) {
            return Err(Refused::OtherAudience);
        }
        let key: Key = Sha256::digest(format!("{path}\n{token}")).into();
        if let Some(known) = self.memory().known_or_begin(&key, Instant::now())? {
            return known;
        }
        let reviewed = timeout(REVIEW_LIMIT, review(&self.api, token, path)).await;
        let answer = reviewed
            .unwrap_or_else(|_| Err(Refused::NotReviewed(format!("it gives no answer within {REVIEW_LIMIT:?}"))));
        // The next question may be answered.
        if !matches!(answer, Err(Refused::NotReviewed(_))) {
            self.memory().remember(key, answer.clone(), Instant::now());
        }
        answer
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// The answer that is known; `None`: a review may begin.
    fn known_or_begin(&mut self, key: &Key, now: Instant) -> Result<Option<Answer>, Refused> {
        if let Some((answer, until)) = self.answers.get(key)
            && *until > now
        {
            return Ok(Some(answer.clone()));
        }
        let passed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.allowance = (self.allowance + passed * REVIEWS_PER_SECOND).min(f64::from(REVIEWS_AT_ONCE));
        self.counted = now;
        if self.allowance < 1.0 {
            return Err(Refused::TooMany);
        }
        self.allowance -= 1.0;
        Ok(None)
    }

    fn remember(&mut self, key: Key, answer: Answer, now: Instant) {
        if self.answers.len() >= REMEMBERED_MAX {
            self.answers.retain(|_, (_, until)| *until > now);
        }
        if self.answers.len() >= REMEMBERED_MAX
            && let Some(next) = self.answers.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| *key)
        {
            self.answers.remove(&next);
        }
        let holds = if answer.is_ok() { GRANTED_FOR } else { REFUSED_FOR };
        self.answers.insert(key, (answer, now + holds));
    }
}

/// Whether the token says that it is for this listener. Its signature is not checked here: a token of another audience is not worth a review.
fn names_audience(token: &str) -> bool {
    #[derive(Deserialize)]
    struct Claims {
        aud: Audiences,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audiences {
        One(String),
        Many(Vec<String>),
    }
    let claims = token.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
    match claims.and_then(|json| serde_json::from_slice::<Claims>(&json).ok()) {
        Some(Claims { aud: Audiences::One(audience) }) => audience == AUDIENCE,
        Some(Claims { aud: Audiences::Many(audiences) }) => audiences.iter().any(|audience| audience == AUDIENCE),
        None => false,
    }
}

async fn review(api: &Client, token: &str, path: &str) -> Answer {
    let user = authenticate(api, token).await?;
    let name = user.username.clone().unwrap_or_default();
    let spec = SubjectAccessReviewSpec {
        user: user.username,
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        }),
        ..SubjectAccessReviewSpec::default()
    };
    let question = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviewed = Api::all(api.clone()).create(&PostParams::default(), &question).await.map_err(not_reviewed)?;
    match reviewed.status {
        Some(SubjectAccessReviewStatus { allowed: true, denied, .. }) if denied != Some(true) => Ok(()),
        _ => Err(Refused::Denied { user: name, path: path.to_owned() }),
    }
}

async fn authenticate(api: &Client, token: &str) -> Result<UserInfo, Refused> {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) };
    let question = TokenReview { spec, ..TokenReview::default() };
    let reviewed = Api::all(api.clone()).create(&PostParams::default(), &question).await.map_err(not_reviewed)?;
    let status = reviewed.status.unwrap_or_default();
    // Without its audience in the answer, the token is one for the API server itself.
    let is_ours = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
    match status.user {
        Some(user) if status.authenticated == Some(true) && is_ours && user.username.is_some() => Ok(user),
        _ => Err(Refused::NotAuthenticated(status.error.unwrap_or_else(|| "it is not valid".to_owned()))),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn not_reviewed(error: kube::Error) -> Refused {
    Refused::NotReviewed(super::agents::said(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::test_api::{TestApi, token};

    #[tokio::test(start_paused = true)]
    async fn a_right_is_reviewed_once_and_holds_for_a_minute() {
        let api = TestApi::default();
        let reviewer = Reviewer::new(api.client());
        for _ in 0..3 {
            assert_eq!(reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await, Ok(()));
        }
        assert_eq!((api.token_reviews(), api.access_reviews()), (1, 1));
        let denied = reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/sysdump").await.expect_err("no right");
        assert_eq!(denied.status(), 403);
        assert!(denied.to_string().contains("viewer may not get /fleet/sysdump"), "{denied}");
        api.revoke("viewer");
        assert_eq!(reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await, Ok(()));
        tokio::time::advance(GRANTED_FOR).await;
        let gone = reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await.expect_err("revoked");
        assert_eq!(gone.status(), 401);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_token_for_us_costs_no_review() {
        let api = TestApi::default();
        let reviewer = Reviewer::new(api.client());
        let long = token(&"x".repeat(TOKEN_BYTES_MAX), AUDIENCE);
        let others = token("viewer", "https://kubernetes.default.svc");
        for bad in [None, Some(""), Some("opaque"), Some("a.b.c"), Some(&long), Some(&others)] {
            assert_eq!(reviewer.admit(bad, "/fleet/status").await.expect_err("refused").status(), 401, "{bad:?}");
        }
        assert_eq!((api.token_reviews(), api.access_reviews()), (0, 0));
    }

    /// An API server that knows no audiences answers for itself: the token would be one for the API.
    #[tokio::test(start_paused = true)]
    async fn a_token_without_our_audience_in_the_review_is_refused() {
        let api = TestApi::default();
        api.forget_audiences();
        let refused = Reviewer::new(api.client()).admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await;
        assert_eq!(refused.expect_err("refused").status(), 401);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_review_admits_nobody_and_is_not_remembered() {
        let api = TestApi::default();
        let reviewer = Reviewer::new(api.client());
        api.fail(true);
        let failed = reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await.expect_err("no API");
        assert_eq!(failed.status(), 503);
        api.fail(false);
        assert_eq!(reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await, Ok(()));
        api.hang();
        let late = reviewer.admit(Some(&token("other", AUDIENCE)), "/fleet/status").await.expect_err("no answer");
        assert!(late.to_string().contains(&format!("no answer within {REVIEW_LIMIT:?}")), "{late}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_tokens_is_no_load_on_the_api_server() {
        let api = TestApi::default();
        let reviewer = Reviewer::new(api.client());
        assert_eq!(reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await, Ok(()));
        let mut refused = 0;
        for number in 0..1_000 {
            let answer = reviewer.admit(Some(&token(&format!("forged{number}"), AUDIENCE)), "/fleet/status").await;
            refused += usize::from(answer == Err(Refused::TooMany));
        }
        assert_eq!((api.token_reviews(), refused), (20, 981));
        tokio::time::advance(Duration::from_secs(2)).await;
        for number in 0..100 {
            let _ = reviewer.admit(Some(&token(&format!("late{number}"), AUDIENCE)), "/fleet/status").await;
        }
        assert_eq!(api.token_reviews(), 30, "five in each second");
        assert_eq!(reviewer.admit(Some(&token("viewer", AUDIENCE)), "/fleet/status").await, Ok(()), "it is known");
        assert!(reviewer.memory().answers.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn answers_are_bounded_and_grants_outlast_refusals() {
        let now = Instant::now();
        let mut memory = Memory { answers: HashMap::new(), allowance: 0.0, counted: now };
        memory.remember([255; 32], Ok(()), now);
        for number in 0..1_000_u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&number.to_be_bytes());
            memory.remember(key, Err(Refused::NotAuthenticated(String::new())), now);
        }
        assert_eq!(memory.answers.len(), REMEMBERED_MAX);
        assert!(memory.answers.contains_key(&[255; 32]));
    }
}
