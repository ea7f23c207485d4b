//! Sends spans to an OpenTelemetry collector, if `OTEL_EXPORTER_OTLP_ENDPOINT` names one: OTLP over HTTP, as JSON.
//!
//! Crates only make spans of `tracing`. Without a collector they are disabled, and cost what a disabled log line costs.

mod layer;
mod message;
mod send;
mod span;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use self::layer::SpanLayer;
use self::message::ExportMessage;
use self::send::Collector;

/// Spans that may wait to be sent; when a collector is slower than this, newer ones are dropped.
const WAITING: usize = 8192;
/// How long a program that ends waits for its last spans to be sent.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// The sending thread, which has to know when the program ends.
pub(crate) struct Exporter {
    queue: SyncSender<ExportMessage>,
    sender: JoinHandle<()>,
}

/// The layer that takes spans, and their sender; none if no collector is named.
pub(crate) fn from_environment() -> Result<Option<(SpanLayer, Exporter)>, String> {
    let Some(collector) = Collector::of(variable)? else { return Ok(None) };
    let (queue, messages) = sync_channel(WAITING);
    let sender = std::thread::Builder::new().name("otlp".to_owned());
    let sender = sender.spawn(move || send::run(&collector, &messages)).map_err(|error| error.to_string())?;
    Ok(Some((SpanLayer::new(queue.clone()), Exporter { queue, sender })))
}

#[expect(
    clippy::disallowed_methods,
    reason = "OpenTelemetry names these variables, and they are no settings of a command"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Exporter {
    /// Waits until the last spans are sent, but not for a collector that does not answer.
    pub(crate) fn finish(self) {
        let (done, sent) = sync_channel(1);
        if self.queue.try_send(ExportMessage::Last(done)).is_ok() && sent.recv_timeout(FINISH_WITHIN).is_ok()
        {
            // The thread returns after this answer, so join could only report a panic.
            let _ = self.sender.join();
        }
    }
}
