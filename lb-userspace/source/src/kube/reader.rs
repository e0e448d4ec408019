//! Makes the calls of a [`Watcher`] to the API, each on a connection of its own, and passes its updates on.

use std::{
    hash::{BuildHasher as _, RandomState},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    api::{ListParams, WatchParams},
    core::request::Request,
};
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    ask::{Body, SpareClient, ask},
    bounds::{PAGE_BYTES, PAGE_OBJECTS},
    calls::{Call, Effect, Page, Received, WatcherOutput},
    connect::ApiClients,
    failure::Failure,
    item::{Event, Item, read_event, read_item},
    reason::reason,
    split::{Items, Lines},
    version::Version,
    watcher::{WatchSettings, Watcher},
};
use lb_objects::lean::ApiKind;

/// What to follow.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

/// How often any resource showed that the store went back in time. All resources share it.
pub type WentBack = watch::Sender<u64>;

/// Updates of everything selected, without end.
pub fn read<K>(
    clients: Arc<ApiClients>,
    went_back: WentBack,
    selection: Selection,
    settings: WatchSettings,
) -> impl Stream<Item = WatcherOutput<K>> + Send + 'static
where
    K: ApiKind,
{
    // The keys of the standard library's hash are random numbers.
    let watcher = Watcher::new(settings, RandomState::new().hash_one(0), Instant::now());
    let api = Api { clients, request: Request::new(K::PATH), selection };
    let elsewhere = went_back.subscribe();
    let (watch, probe, list) = (Open::none(), Open::none(), Open::none());
    let reader = Reader {
        api,
        watcher,
        watch,
        probe,
        list,
        page_objects: PAGE_OBJECTS,
        spare: SpareClient::default(),
        went_back,
        elsewhere,
    };
    stream::unfold(reader, |mut reader| async move { Some((reader.updates().await, reader)) })
}

struct Reader<K> {
    api: Api,
    watcher: Watcher<K>,
    watch: Open<K>,
    probe: Open<K>,
    list: Open<K>,
    /// How many objects the next page may have.
    page_objects: u32,
    /// The connection of the list that is under way.
    spare: SpareClient,
    went_back: WentBack,
    elsewhere: watch::Receiver<u64>,
}

impl<K> Reader<K>
where
    K: ApiKind,
{
    /// Waits for something that changes where we stand.
    async fn updates(&mut self) -> WatcherOutput<K> {
        loop {
            let due = self.watcher.due();
            let effects = tokio::select! {
                received = self.watch.next() => self.watcher.receive(Call::Watch, received, Instant::now()),
                received = self.probe.next() => self.watcher.receive(Call::Probe, received, Instant::now()),
                received = self.list.next() => {
                    // A chunk of a page is no update.
                    let is_progress = matches!(received, Received::Progress);
                    if let Received::Page(page) = &received {
                        self.page_objects = next_page(page);
                        if page.token.is_none() {
                            self.spare = SpareClient::default();
                        }
                    }
                    let effects = self.watcher.receive(Call::List, received, Instant::now());
                    if is_progress {
                        continue;
                    }
                    effects
                }
                Ok(()) = self.elsewhere.changed() => self.watcher.went_back_elsewhere(Instant::now()),
                () = sleep_until(due) => self.watcher.tick(Instant::now()),
            };
            let updates = effects.into_iter().filter_map(|effect| self.perform(effect)).collect();
            return self.watcher.updates(updates);
        }
    }

    fn perform(&mut self, effect: Effect<K>) -> Option<super::calls::Update<K>> {
        match effect {
            Effect::Watch { call, version, seconds } => *self.open(call) = Open(self.api.watch(&version, seconds)),
            Effect::List { token } => {
                if token.is_none() {
                    self.spare = SpareClient::default();
                }
                self.list = Open(self.api.list(token, self.page_objects, Some(self.spare.clone())));
            }
            Effect::CheckVersion => self.probe = Open(self.api.list(None, 1, None)),
            Effect::WentBack => {
                self.went_back.send_modify(|times| *times += 1);
                self.elsewhere.mark_unchanged();
            }
            Effect::Close(call) => *self.open(call) = Open::none(),
            Effect::Promote => self.watch = std::mem::replace(&mut self.probe, Open::none()),
            Effect::Emit(updates) => return Some(updates),
        }
        None
    }

    fn open(&mut self, call: Call) -> &mut Open<K> {
        match call {
            Call::Watch => &mut self.watch,
            Call::Probe => &mut self.probe,
            Call::List => &mut self.list,
        }
    }
}

/// How many objects the page after this one may have: so many that their text is not too long, if they are like these.
fn next_page<K>(page: &Page<K>) -> u32 {
    let each = (page.bytes / page.items.len().max(1)).max(1);
    u32::try_from(PAGE_BYTES / each).unwrap_or(PAGE_OBJECTS).clamp(1, PAGE_OBJECTS)
}

/// A call, if one is open. Dropping it closes its connection.
struct Open<K>(BoxStream<'static, Received<K>>);

impl<K: Send + 'static> Open<K> {
    fn none() -> Self {
        Self(stream::pending().boxed())
    }

    /// What comes next; never, when the call is over.
    fn next(&mut self) -> NextReceived<'_, K> {
        NextReceived(self)
    }
}

struct NextReceived<'a, K>(&'a mut Open<K>);

impl<K: Send + 'static> Future for NextReceived<'_, K> {
    type Output = Received<K>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Received<K>> {
        match self.0.0.poll_next_unpin(context) {
            Poll::Ready(Some(received)) => Poll::Ready(received),
            Poll::Ready(None) => {
                *self.0 = Open::none();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The API of one resource.
struct Api {
    clients: Arc<ApiClients>,
    request: Request,
    selection: Selection,
}

impl Api {
    fn watch<K: ApiKind>(&self, version: &Version, seconds: u32) -> BoxStream<'static, Received<K>> {
        // Bookmarks are on by default.
        let parameters = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        let request = self.request.watch(&parameters, &version.to_string());
        answer(Arc::clone(&self.clients), None, request, |body| {
            stream::once(async { Received::Opened })
                .chain(events(body))
                .chain(stream::once(async { Received::Ended }))
                .boxed()
        })
    }

    /// One page of the list, with a word about its progress now and then.
    fn list<K: ApiKind>(
        &self,
        token: Option<String>,
        objects: u32,
        spare: Option<SpareClient>,
    ) -> BoxStream<'static, Received<K>> {
        // Without a version the answer is what the store holds now, not what some server remembers.
        let parameters = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(objects),
            continue_token: token,
            ..ListParams::default()
        };
        tracing::debug!(source = "kube", url = self.request.url_path, "listing");
        answer(Arc::clone(&self.clients), spare, self.request.list(&parameters), |body| page(body).boxed())
    }
}

/// Makes a call; `received` reads the body of a good answer.
fn answer<K: ApiKind>(
    clients: Arc<ApiClients>,
    spare: Option<SpareClient>,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    received: impl FnOnce(Body) -> BoxStream<'static, Received<K>> + Send + 'static,
) -> BoxStream<'static, Received<K>> {
    let failed = |failure| stream::once(async { Received::Failed(failure) }).boxed();
    let asked = async move {
        let request = match request {
            Ok(request) => request,
            Err(error) => return failed(Failure::without_status(reason(&error))),
        };
        match ask(&clients, spare.as_ref(), request).await {
            Ok(body) => received(body),
            Err(failure) => failed(failure),
        }
    };
    stream::once(asked).flatten().boxed()
}

/// What the lines of a watch say.
fn events<K: ApiKind>(body: Body) -> impl Stream<Item = Received<K>> + Send {
    let received = stream::unfold(Some((body, Lines::default())), |reading| async move {
        let (mut body, mut lines) = reading?;
        let received = match body.next().await? {
            Ok(bytes) => lines.feed(&bytes, |text| Received::from(read_event(text))),
            Err(error) => return Some((vec![Received::Failed(Failure::without_status(reason(&error)))], None)),
        };
        Some((received, Some((body, lines))))
    });
    received.flat_map(stream::iter)
}

impl<K> From<Event<K>> for Received<K> {
    fn from(event: Event<K>) -> Self {
        match event {
            Event::Put(item) => Self::Put(item),
            Event::Deleted(name, version) => Self::Deleted(name, version),
            Event::Bookmark(version) => Self::Bookmark(version),
            Event::Failed(failure) => Self::Failed(failure),
            Event::Unreadable(reason) => Self::Unreadable(reason),
        }
    }
}

/// Reads a page item by item: its whole text is never held.
fn page<K: ApiKind>(body: Body) -> impl Stream<Item = Received<K>> + Send {
    stream::unfold(Some((body, Items::default(), Vec::new())), |reading| async move {
        let (mut body, mut text, mut items) = reading?;
        match body.next().await {
            Some(Ok(bytes)) => {
                items.extend(text.feed(&bytes, read_item));
                Some((Received::Progress, Some((body, text, items))))
            }
            Some(Err(error)) => Some((Received::Failed(Failure::without_status(reason(&error))), None)),
            None => Some((whole_page(&text, items), None)),
        }
    })
}

fn whole_page<K: ApiKind>(text: &Items, items: Vec<Option<Item<K>>>) -> Received<K> {
    #[derive(Deserialize)]
    struct List {
        metadata: ListMeta,
    }
    let unreadable =
        |error| Received::Failed(Failure::without_status(format!("the API's list cannot be read: {error}")));
    let Some(rest) = text.rest() else { return unreadable("there is too much besides its items".to_owned()) };
    match serde_json::from_slice::<List>(rest) {
        Ok(List { metadata }) => {
            let nameless = items.iter().filter(|item| item.is_none()).count();
            let nameless = (nameless > 0).then(|| Item::nameless(nameless));
            Received::Page(Page {
                items: items.into_iter().flatten().chain(nameless).collect(),
                version: Version::parse(metadata.resource_version.as_deref()),
                token: metadata.continue_.filter(|token| !token.is_empty()),
                bytes: text.length(),
            })
        }
        Err(error) => unreadable(error.to_string()),
    }
}
