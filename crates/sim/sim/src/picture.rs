//! Pictures of replays as SVG: how full a cluster gets, and how long tasks wait.

use std::fmt::Write as _;

use crate::{Filled, Waits};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Okabe and Ito's colors, which people without full color vision can distinguish.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#555555"];
/// The start of the chart of a filling: below, all policies place everything.
const FULL_FROM: f64 = 60.0;
/// Points of a curve of waits in each factor of ten.
const PER_DECADE: u32 = 20;

/// Allocated over arrived GPU demand, one curve for each replay.
#[must_use]
pub fn allocation(filled: &[Filled]) -> String {
    let end = filled.iter().flat_map(|one| &one.curve).fold(100.0_f64, |end, (arrived, _)| end.max(*arrived));
    let mut picture = Picture::new(
        "GPU allocation while tasks arrive and none ends",
        Axis::linear("GPU demand arrived, % of all GPUs", FULL_FROM, end),
        Axis::linear("GPUs allocated, %", FULL_FROM, 100.0),
        false,
    );
    for one in filled {
        let at_100 = one.figures.allocation_percent_at_100;
        let value = at_100.map_or(String::new(), |percent| format!(", {percent:.1} % at 100 %"));
        picture.curve(&format!("{}{value}", one.figures.policy), &one.curve);
    }
    picture.finish()
}

/// The part of all tasks that waited longer than a time, one curve for each replay.
#[must_use]
pub fn waiting(waits: &[Waits]) -> String {
    let longest = waits.iter().filter_map(|one| one.waits_s.last()).max().copied().unwrap_or(0);
    let decades = longest.max(10).ilog10() + 1;
    let curves: Vec<Vec<(f64, f64)>> = waits.iter().map(|one| longer_than(&one.waits_s, decades)).collect();
    let most = curves.iter().flatten().fold(0.0_f64, |most, (_, percent)| most.max(*percent));
    let mut picture = Picture::new(
        "Waiting time while tasks come and go",
        Axis::decades("seconds", decades),
        Axis::linear("tasks that waited longer, %", 0.0, most.ceil().max(1.0)),
        true,
    );
    for (one, curve) in waits.iter().zip(&curves) {
        picture.curve(&format!("{}, mean {:.0} s", one.policy, one.mean_wait_s), curve);
    }
    picture.finish()
}

/// Points (log10 of seconds, percent that waited longer). `waits_s` is sorted.
fn longer_than(waits_s: &[u64], decades: u32) -> Vec<(f64, f64)> {
    let point = |step: u32| {
        let exponent = f64::from(step) / f64::from(PER_DECADE);
        let shorter = waits_s.partition_point(|wait| *wait as f64 <= 10f64.powf(exponent));
        (exponent, 100.0 * (waits_s.len() - shorter) as f64 / waits_s.len().max(1) as f64)
    };
    (0..=decades * PER_DECADE).map(point).collect()
}

struct Axis {
    label: &'static str,
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn linear(label: &'static str, from: f64, to: f64) -> Self {
        // The coarsest of 1, 2 and 5 times a power of ten that gives at least four steps.
        let fits = |step: &f64| (to - from) / step >= 4.0;
        let steps = (-3..6).rev().flat_map(|power| [5.0, 2.0, 1.0].map(|n| n * 10f64.powi(power)));
        let step = steps.into_iter().find(fits).unwrap_or(to - from);
        let first = (from / step).ceil() * step;
        let values = (0..).map(|at| first + f64::from(at) * step).take_while(|value| *value <= to + 1e-9);
        let tick = |value: f64| (value, format!("{}", (value * 1e6).round() / 1e6));
        Self { label, from, to, ticks: values.map(tick).collect() }
    }

    /// Powers of ten from 1.
    fn decades(label: &'static str, decades: u32) -> Self {
        let tick = |power: u32| (f64::from(power), 10u64.pow(power).to_string());
        Self { label, from: 0.0, to: f64::from(decades), ticks: (0..=decades).map(tick).collect() }
    }

    fn part(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }
}

struct Picture {
    x: Axis,
    y: Axis,
    svg: String,
    curves: usize,
    /// Whether the names are at the top of the right side: falling curves leave room there.
    legend_above: bool,
}

impl Picture {
    fn new(title: &str, x: Axis, y: Axis, legend_above: bool) -> Self {
        let mut picture = Self { x, y, svg: String::new(), curves: 0, legend_above };
        picture.push(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"
        ));
        picture.text(LEFT, TOP - 18.0, "start", &format!("<tspan font-size=\"16\">{title}</tspan>"));
        picture.axes();
        picture
    }

    fn axes(&mut self) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, label) in self.x.ticks.clone() {
            let x = self.x_of(value);
            self.push(&format!("<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>"));
            self.text(x, bottom + 18.0, "middle", &label);
        }
        for (value, label) in self.y.ticks.clone() {
            let y = self.y_of(value);
            self.push(&format!("<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>"));
            self.text(LEFT - 8.0, y + 4.0, "end", &label);
        }
        self.text(f64::midpoint(LEFT, right), HEIGHT - 14.0, "middle", self.x.label);
        let (x, y) = (18.0, f64::midpoint(TOP, bottom));
        let label = self.y.label;
        self.push(&format!(
            "<text transform=\"translate({x} {y}) rotate(-90)\" text-anchor=\"middle\">{label}</text>"
        ));
    }

    /// A curve, and its name in the legend.
    fn curve(&mut self, name: &str, points: &[(f64, f64)]) {
        let color = COLORS[self.curves % COLORS.len()];
        let inside = points.iter().filter(|(x, y)| *x >= self.x.from && *y >= self.y.from);
        let points: Vec<String> =
            inside.map(|(x, y)| format!("{:.1},{:.1}", self.x_of(*x), self.y_of(*y))).collect();
        self.push(&format!(
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        ));
        let line = 20.0 * (self.curves as f64 + 1.0);
        let y = if self.legend_above { TOP + line } else { HEIGHT - BOTTOM - line };
        let x = WIDTH - RIGHT - 230.0;
        self.push(&format!("<path d=\"M{x} {y}h24\" stroke=\"{color}\" stroke-width=\"3\"/>"));
        self.text(x + 32.0, y + 4.0, "start", name);
        self.curves += 1;
    }

    fn finish(mut self) -> String {
        self.push("</svg>");
        self.svg
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.part(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.part(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    fn push(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.svg, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let labels = |axis: Axis| axis.ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(Axis::linear("", 60.0, 100.0)), ["60", "70", "80", "90", "100"]);
        assert_eq!(labels(Axis::linear("", 0.0, 1.0)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(Axis::decades("", 2)), ["1", "10", "100"]);
    }

    #[test]
    fn the_part_that_waited_longer() {
        let curve = longer_than(&[0, 0, 10, 1000], 3);
        let at = |exponent: f64| curve.iter().find(|(x, _)| *x == exponent).map(|(_, percent)| *percent);
        assert_eq!([at(0.0), at(1.0), at(2.0), at(3.0)], [Some(50.0), Some(25.0), Some(25.0), Some(0.0)]);
    }
}
