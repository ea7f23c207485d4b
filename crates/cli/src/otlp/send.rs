//! The sending thread. It has an async runtime of its own, so the program needs none.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::message::ExportMessage;
use super::span::{Span, request};

/// Maximum number of spans in a request.
const BATCH: usize = 512;
/// Time that a span waits for others before it is sent.
const EVERY: Duration = Duration::from_secs(1);
/// A collector that takes longer loses these spans.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The destination of spans, from the standard variables.
#[derive(Debug)]
pub(super) struct Collector {
    url: reqwest::Url,
    headers: HeaderMap,
    /// About this program.
    resource: Vec<(&'static str, String)>,
}

impl Collector {
    /// Reads these variables; `None` if they name no collector.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let base = variable(BASE).map(|base| (BASE, format!("{}/v1/traces", base.trim_end_matches('/'))));
        let Some((name, url)) = variable(TRACES).map(|url| (TRACES, url)).or(base) else {
            return Ok(None);
        };
        let parsed = reqwest::Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url =
            parsed.ok_or_else(|| format!("{name} is {url}; write an address such as http://host:4318"))?;
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for pair in variable(HEADERS).iter().flat_map(|list| list.split(',')) {
            let header = pair.split_once('=').and_then(|(name, value)| {
                let name = HeaderName::try_from(name.trim()).ok()?;
                Some((name, HeaderValue::try_from(value.trim()).ok()?))
            });
            let (name, value) = header.ok_or_else(|| format!("{HEADERS} is not NAME=VALUE,NAME=VALUE"))?;
            headers.insert(name, value);
        }
        let service = variable("OTEL_SERVICE_NAME").unwrap_or_else(|| "cantle".to_owned());
        let resource = vec![
            ("service.name", service),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("process.pid", std::process::id().to_string()),
        ];
        Ok(Some(Self { url, headers, resource }))
    }
}

/// Sends until the last message.
pub(super) fn run(collector: &Collector, messages: &Receiver<ExportMessage>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let client = reqwest::Client::builder().timeout(ANSWER_WITHIN).build();
    let (runtime, client) = match (runtime, client) {
        (Ok(runtime), Ok(client)) => (runtime, client),
        (Err(error), _) => return tracing::warn!(%error, "spans cannot be sent"),
        (_, Err(error)) => return tracing::warn!(%error, "spans cannot be sent"),
    };
    let mut troubled = false;
    loop {
        let (spans, then) = batch(messages);
        if !spans.is_empty() {
            let sent = runtime.block_on(post(&client, collector, &spans));
            if let (Err(why), false) = (&sent, troubled) {
                tracing::warn!("spans are lost until the collector takes them: {why}");
            }
            troubled = sent.is_err();
        }
        match then {
            Then::More => {}
            Then::End(done) => {
                // The caller that waited for it may have given up.
                let _ = done.map(|done| done.send(()));
                return;
            }
        }
    }
}

/// The message after a batch.
enum Then {
    More,
    /// The end; the sender of the last message waits for an answer.
    End(Option<SyncSender<()>>),
}

/// The next spans, once there are enough or the first has waited long enough.
fn batch(messages: &Receiver<ExportMessage>) -> (Vec<Span>, Then) {
    let mut spans = Vec::new();
    let mut until = None;
    while spans.len() < BATCH {
        let message = match until {
            // Nothing is there yet: nothing can be late.
            None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => messages.recv_timeout(Instant::duration_since(&until, Instant::now())),
        };
        match message {
            Ok(ExportMessage::Span(span)) => spans.push(*span),
            Ok(ExportMessage::Last(done)) => return (spans, Then::End(Some(done))),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return (spans, Then::End(None)),
        }
        until.get_or_insert_with(|| Instant::now() + EVERY);
    }
    (spans, Then::More)
}

async fn post(client: &reqwest::Client, collector: &Collector, spans: &[Span]) -> Result<(), String> {
    let body = request(&collector.resource, spans).to_string();
    let post = client.post(collector.url.clone()).headers(collector.headers.clone()).body(body);
    let answer = post.send().await.map_err(|error| format!("{}: {error}", collector.url))?;
    if answer.status().is_success() {
        return Ok(());
    }
    Err(format!("{} answers {}", collector.url, answer.status()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(variables: &[(&str, &str)]) -> Result<Option<Collector>, String> {
        Collector::of(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_standard_variables() {
        assert!(collector(&[]).unwrap().is_none());
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
        assert!(collector(&[base, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
        let found = collector(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a b, y=2")]).unwrap().unwrap();
        assert_eq!(found.url.as_str(), "http://collector:4318/v1/traces");
        assert_eq!(
            (&found.headers["x-key"], &found.headers["y"]),
            (&"a b".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(found.resource[0], ("service.name", "cantle".to_owned()));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://other/spans");
        let found = collector(&[base, own, ("OTEL_SERVICE_NAME", "gpu1")]).unwrap().unwrap();
        assert_eq!((found.url.as_str(), &*found.resource[0].1), ("https://other/spans", "gpu1"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")]).unwrap_err();
        assert!(wrong.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT is collector:4318"), "{wrong}");
        let pairs = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_EXPORTER_OTLP_HEADERS", "secret")];
        assert!(!collector(&pairs).unwrap_err().contains("secret"), "values may be keys");
    }
}
