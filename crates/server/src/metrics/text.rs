//! Metrics as text: OpenMetrics for who asks for it, else what Prometheus has read since its first version.

use std::fmt::Write as _;

/// What a family's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up; its samples end in `_total`.
    Counter,
    /// Counts in buckets.
    Histogram,
}

/// Grows family by family, sample by sample.
#[derive(Debug)]
pub(crate) struct Exposition {
    open_metrics: bool,
    family: &'static str,
    kind: Kind,
    text: String,
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Exposition {
    /// An empty one, in the format that the `Accept` header asks for.
    pub(crate) fn new(accept: &str) -> Self {
        let open_metrics = accept.contains("application/openmetrics-text");
        Self { open_metrics, family: "", kind: Kind::Gauge, text: String::new() }
    }

    /// Begins a family; `name` without `_total`.
    pub(crate) fn family(&mut self, kind: Kind, name: &'static str, help: &str) {
        (self.family, self.kind) = (name, kind);
        // OpenMetrics names a counter's family without the suffix, the older format with it.
        let suffix = if kind == Kind::Counter && !self.open_metrics { "_total" } else { "" };
        let word = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}\n");
    }

    /// A number of the family.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        self.line(suffix, labels, value);
    }

    /// A histogram without labels: upper bounds with the count at or below each, the count of all, and their sum.
    pub(crate) fn histogram(&mut self, buckets: &[(f64, u64)], count: u64, sum: f64) {
        for (bound, below) in buckets {
            // OpenMetrics wants every bound to look like a float.
            let bound = format!("{bound:?}");
            self.line("_bucket", &[("le", &bound)], precise(*below));
        }
        self.line("_bucket", &[("le", "+Inf")], precise(count));
        self.line("_sum", &[], sum);
        self.line("_count", &[], precise(count));
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
    pub(crate) fn finish(mut self) -> (&'static str, String) {
        if self.open_metrics {
            self.text += "# EOF\n";
            return (OPEN_METRICS, self.text);
        }
        (CLASSIC, self.text)
    }
}

/// Metrics are floats; above 2^53 bytes (8 PiB) the last digits go.
pub(crate) const fn precise(value: u64) -> f64 {
    value as f64
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(accept: &str) -> (&'static str, String) {
        let mut text = Exposition::new(accept);
        text.family(Kind::Gauge, "a_bytes", "What a is.");
        text.sample(&[("name", "say \"hi\"\\\n"), ("gpu", "0")], precise(42_949_672_960));
        text.family(Kind::Counter, "b", "How often b.");
        text.sample(&[], 3.0);
        text.family(Kind::Histogram, "c_seconds", "How long c.");
        text.histogram(&[(1.0, 2), (2.5, 3)], 4, 7.25);
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
             c_seconds_bucket{le=\"1.0\"} 2\nc_seconds_bucket{le=\"2.5\"} 3\nc_seconds_bucket{le=\"+Inf\"} 4\n\
             c_seconds_sum 7.25\nc_seconds_count 4\n# EOF\n"
        );
    }

    #[test]
    fn classic_text_names_counters_in_full_and_has_no_end() {
        let (content_type, text) = example("*/*");
        assert!(content_type.starts_with("text/plain"));
        assert!(text.contains("# TYPE b_total counter\nb_total 3\n") && !text.contains("EOF"), "{text}");
    }
}
