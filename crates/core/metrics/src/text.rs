//! Metrics as text: OpenMetrics for scrapers that accept it, else Prometheus' classic format.

use std::fmt::Write as _;

use crate::Histogram;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only goes up; its samples end in `_total`.
    Counter,
    /// Counts in buckets.
    Histogram,
}

/// The text of `/metrics`, written family by family, sample by sample.
#[derive(Debug)]
pub struct Exposition {
    open_metrics: bool,
    family: &'static str,
    kind: MetricKind,
    text: String,
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Exposition {
    /// An empty one, in the format that the `Accept` header asks for.
    #[must_use]
    pub fn new(accept: &str) -> Self {
        let open_metrics = accept.contains("application/openmetrics-text");
        Self { open_metrics, family: "", kind: MetricKind::Gauge, text: String::new() }
    }

    /// Begins a family; `name` without `_total`.
    pub fn family(&mut self, kind: MetricKind, name: &'static str, help: &str) {
        (self.family, self.kind) = (name, kind);
        // OpenMetrics names a counter's family without the suffix, the classic format with it.
        let suffix = if kind == MetricKind::Counter && !self.open_metrics { "_total" } else { "" };
        let word = match kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
        };
        self.text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}\n");
    }

    /// A number of the family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let suffix = if self.kind == MetricKind::Counter { "_total" } else { "" };
        self.line(suffix, labels, value);
    }

    /// A histogram of the family.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        for (bound, below) in histogram.cumulative() {
            // OpenMetrics requires each bound to be written as a float.
            self.line("_bucket", &with(labels, &format!("{bound:?}")), precise(below));
        }
        self.line("_bucket", &with(labels, "+Inf"), precise(histogram.count()));
        self.line("_sum", labels, histogram.sum());
        self.line("_count", labels, precise(histogram.count()));
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.text += self.family;
        self.text += suffix;
        for (at, (name, label)) in labels.iter().enumerate() {
            let comma = if at == 0 { '{' } else { ',' };
            // Writing to a String cannot fail.
            let _ = write!(self.text, "{comma}{name}=\"{}\"", escape(label));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// Content type and body.
    #[must_use]
    pub fn finish(mut self) -> (&'static str, String) {
        if self.open_metrics {
            self.text += "# EOF\n";
            return (OPEN_METRICS, self.text);
        }
        (CLASSIC, self.text)
    }
}

/// Metrics are floats; above 2^53 bytes (8 PiB) the last digits go.
#[must_use]
pub const fn precise(value: u64) -> f64 {
    value as f64
}

fn with<'a>(labels: &[(&'a str, &'a str)], bound: &'a str) -> Vec<(&'a str, &'a str)> {
    labels.iter().copied().chain([("le", bound)]).collect()
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(accept: &str) -> (&'static str, String) {
        let mut text = Exposition::new(accept);
        text.family(MetricKind::Gauge, "a_bytes", "What a is.");
        text.sample(&[("name", "say \"hi\"\\\n"), ("gpu", "0")], precise(42_949_672_960));
        text.family(MetricKind::Counter, "b", "How often b.");
        text.sample(&[], 3.0);
        text.family(MetricKind::Histogram, "c_seconds", "How long c.");
        let mut waits = Histogram::new(&[1.0, 2.5]);
        [0.5, 0.75, 2.0, 4.0].into_iter().for_each(|value| waits.observe(value));
        text.histogram(&[("queue", "q")], &waits);
        text.finish()
    }

    #[test]
    fn open_metrics() {
        let (content_type, text) = example("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert!(content_type.starts_with("application/openmetrics-text"));
        assert_eq!(
            text,
            "# HELP a_bytes What a is.\n# TYPE a_bytes gauge\n\
             a_bytes{name=\"say \\\"hi\\\"\\\\\\n\",gpu=\"0\"} 42949672960\n\
             # HELP b How often b.\n# TYPE b counter\nb_total 3\n\
             # HELP c_seconds How long c.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{queue=\"q\",le=\"1.0\"} 2\nc_seconds_bucket{queue=\"q\",le=\"2.5\"} 3\n\
             c_seconds_bucket{queue=\"q\",le=\"+Inf\"} 4\n\
             c_seconds_sum{queue=\"q\"} 7.25\nc_seconds_count{queue=\"q\"} 4\n# EOF\n"
        );
    }

    #[test]
    fn classic_text_names_counters_in_full_and_has_no_end() {
        let (content_type, text) = example("*/*");
        assert!(content_type.starts_with("text/plain"));
        assert!(text.contains("# TYPE b_total counter\nb_total 3\n") && !text.contains("EOF"), "{text}");
    }
}
