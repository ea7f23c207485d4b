//! Converts `tracing`'s spans. A span about a task belongs to the trace with the task's id, in every program that handles the
//! task: both ids have 128 bits.

use std::fmt::Debug;
use std::sync::mpsc::SyncSender;

use jiff::Timestamp;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use super::message::ExportMessage;
use super::span::Span;

/// The field that names a task.
const TASK: &str = "task";

/// Takes the spans of cantle's own crates.
pub(crate) struct SpanLayer {
    queue: SyncSender<ExportMessage>,
}

impl SpanLayer {
    pub(super) const fn new(queue: SyncSender<ExportMessage>) -> Self {
        Self { queue }
    }

    /// Libraries have spans, too; those are not for our users.
    pub(crate) fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("cantle")
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(opened) = context.span(id) else { return };
        let parent = opened.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<Span>().map(|span| (span.trace, span.id))
        });
        let mut span = Span {
            name: attributes.metadata().name(),
            trace: 0,
            id: Uuid::new_v4().as_u64_pair().0,
            parent: None,
            start_ns: now_ns(),
            end_ns: 0,
            attributes: Vec::new(),
        };
        attributes.record(&mut Fields(&mut span));
        let of_task = span.attributes.iter().find(|(name, _)| *name == TASK);
        let of_task = of_task.and_then(|(_, task)| trace_of(task["stringValue"].as_str()?));
        (span.trace, span.parent) = match (of_task, parent) {
            (Some(trace), Some((parents, parent))) if parents == trace => (trace, Some(parent)),
            (Some(trace), _) => (trace, None),
            (None, Some((trace, parent))) => (trace, Some(parent)),
            (None, None) => (Uuid::new_v4().as_u128(), None),
        };
        opened.extensions_mut().insert(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(opened) = context.span(id)
            && let Some(span) = opened.extensions_mut().get_mut::<Span>()
        {
            values.record(&mut Fields(span));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(closed) = context.span(&id)
            && let Some(mut span) = closed.extensions_mut().remove::<Span>()
        {
            span.end_ns = now_ns();
            // A full queue: the collector is too slow, and what is traced must not wait for it.
            let _ = self.queue.try_send(ExportMessage::Span(Box::new(span)));
        }
    }
}

fn now_ns() -> i128 {
    Timestamp::now().as_nanosecond()
}

/// Ids of tasks are 32 digits of hex; `cantle run`'s are not.
fn trace_of(task: &str) -> Option<u128> {
    let trace = u128::from_str_radix(task, 16).ok().filter(|_| task.len() == 32);
    trace.filter(|trace| *trace != 0)
}

struct Fields<'a>(&'a mut Span);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.set(field.name(), json!({"stringValue": value}));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.set(field.name(), json!({"intValue": value.to_string()}));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.set(field.name(), json!({"intValue": value.to_string()}));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.set(field.name(), json!({"boolValue": value}));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.set(field.name(), Value::from_iter([("stringValue", format!("{value:?}"))]));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn spans(received: &Receiver<ExportMessage>) -> Vec<Span> {
        let span = |message| match message {
            ExportMessage::Span(span) => *span,
            ExportMessage::Last(_) => panic!("an end that the test did not send"),
        };
        received.try_iter().map(span).collect()
    }

    #[test]
    fn a_task_has_its_trace_and_what_is_within_has_a_parent() {
        let (queue, received) = sync_channel(8);
        let subscriber = tracing_subscriber::registry().with(SpanLayer::new(queue));
        let task = "0123456789abcdef0123456789abcdef";
        tracing::subscriber::with_default(subscriber, || {
            let plan = tracing::info_span!("plan", waiting = 3, placed = tracing::field::Empty).entered();
            plan.record("placed", 1);
            tracing::info_span!("claim", task, queue = %"half").in_scope(|| {
                tracing::info_span!("ask", task).in_scope(|| ());
            });
            tracing::info_span!("other", task = "run-12").in_scope(|| ());
        });
        let [ask, claim, other, plan] = <[Span; 4]>::try_from(spans(&received)).unwrap();
        let trace = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!((ask.trace, ask.parent), (trace, Some(claim.id)));
        assert_eq!(
            (claim.trace, claim.parent),
            (trace, None),
            "what it was planned in is not about it alone"
        );
        assert_eq!((other.trace, other.parent), (plan.trace, Some(plan.id)), "not the id of a trace");
        assert_eq!((plan.name, plan.parent), ("plan", None));
        let int = |value: &str| json!({"intValue": value});
        assert_eq!(plan.attributes, [("waiting", int("3")), ("placed", int("1"))]);
        assert_eq!(claim.attributes[1], ("queue", json!({"stringValue": "half"})));
        assert!(plan.start_ns <= claim.start_ns && claim.end_ns <= plan.end_ns);
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting() {
        let (queue, received) = sync_channel(1);
        let subscriber = tracing_subscriber::registry().with(SpanLayer::new(queue));
        tracing::subscriber::with_default(subscriber, || {
            (0..3).for_each(|_| tracing::info_span!("one").in_scope(|| ()));
        });
        assert_eq!(spans(&received).len(), 1);
    }
}
