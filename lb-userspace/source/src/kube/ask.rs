//! One question to the API: the body of a good answer, or why there is none.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyDataStream, BodyExt as _};
use tokio::sync::Mutex;

use super::{
    connect::{ApiClient, ApiClients},
    failure::Failure,
    item::ApiError,
    reason::reason,
};

/// What the API sends, as it comes.
pub type Body = BodyDataStream<kube::client::Body>;

/// So much is read of an answer with an error.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// The connection of a list, kept from page to page: a TLS handshake costs more than a page.
#[derive(Clone, Default)]
pub struct SpareClient(Arc<Mutex<Option<ApiClient>>>);

/// `kept`: the question may take the connection of the one before.
pub async fn ask(
    clients: &Arc<ApiClients>,
    spare: Option<&SpareClient>,
    request: Request<Vec<u8>>,
) -> Result<Body, Failure> {
    let client = match spare {
        None => clients.choose(0).await,
        Some(SpareClient(spare)) => {
            let mut spare = spare.lock().await;
            match &*spare {
                Some(client) => client.clone(),
                None => spare.insert(clients.choose(1).await).clone(),
            }
        }
    };
    let pending = clients.pending(&client);
    let answer = client.client.send(request.map(kube::client::Body::from)).await;
    let is_server_well = answer.as_ref().is_ok_and(|answer| !answer.status().is_server_error());
    pending.answered(is_server_well);
    if let (Some(SpareClient(spare)), false) = (spare, is_server_well) {
        *spare.lock().await = None;
    }
    let answer = answer.map_err(|error| Failure::without_status(reason(&error)))?;
    if answer.status().is_success() {
        return Ok(answer.into_body().into_data_stream());
    }
    Err(refusal(answer).await)
}
async fn refusal(answer: Response<kube::client::Body>) -> Failure {
    let (status, retry_after) = (answer.status(), retry_after(&answer));
    let mut body = answer.into_body().into_data_stream();
    let mut text = Vec::new();
    while let Some(Ok(bytes)) = body.next().await {
        text.extend_from_slice(&bytes[..bytes.len().min(ERROR_BYTES_MAX - text.len())]);
        if text.len() == ERROR_BYTES_MAX {
            break;
        }
    }
    Failure { status: Some(status.as_u16()), reason: why(status, &text), retry_after }
}

fn why(status: StatusCode, text: &[u8]) -> String {
    let updates = serde_json::from_slice(text).ok().and_then(ApiError::text);
    let updates = updates.unwrap_or_else(|| String::from_utf8_lossy(text).trim().chars().take(200).collect());
    if updates.is_empty() {
        format!("the API answers {status}")
    } else {
        format!("the API answers {status}: {updates}")
    }
}

/// Seconds; a date is left out.
fn retry_after(answer: &Response<kube::client::Body>) -> Option<Duration> {
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
