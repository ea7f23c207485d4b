//! A span, and OTLP's JSON for it.

use serde_json::{Value, json};

/// OTLP's `SPAN_KIND_INTERNAL`.
const INTERNAL: u8 = 1;

/// A span that is over, or about to be.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: &'static str,
    pub(super) trace: u128,
    pub(super) id: u64,
    pub(super) parent: Option<u64>,
    pub(super) start_ns: i128,
    pub(super) end_ns: i128,
    /// OTLP's values by name: `{"stringValue": …}`, `{"intValue": …}`.
    pub(super) attributes: Vec<(&'static str, Value)>,
}

impl Span {
    /// The later value of a field counts.
    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        match self.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.attributes.push((name, value)),
        }
    }

    fn to_json(&self) -> Value {
        let attributes: Vec<Value> =
            self.attributes.iter().map(|(name, value)| json!({"key": name, "value": value})).collect();
        json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "parentSpanId": self.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
            "name": self.name,
            "kind": INTERNAL,
            "startTimeUnixNano": self.start_ns.to_string(),
            "endTimeUnixNano": self.end_ns.to_string(),
            "attributes": attributes,
        })
    }
}

/// The payload: these spans, of the program that the resource describes.
pub(super) fn request(resource: &[(&str, String)], spans: &[Span]) -> Value {
    let about = |(key, value): &(&str, String)| json!({"key": key, "value": {"stringValue": value}});
    let resource: Vec<Value> = resource.iter().map(about).collect();
    let spans: Vec<Value> = spans.iter().map(Span::to_json).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "cantle", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}
