//! Small pictures, made of figures alone: the last hour of the engine, and when steps ran. Each has its figures as text
//! beside it.

use super::layout::{TextRow, table, text};
use crate::text::duration;
use maud::{Markup, html};

/// The counters at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds before the picture is made.
    pub ago: f64,
    /// Calls that have ended, and those of them that have failed.
    pub calls: f64,
    pub failed: f64,
    /// Calls that are due and not under way.
    pub due: f64,
}

/// A figure between two samples.
struct Stretch {
    from: f64,
    to: f64,
    value: f64,
}

/// How far back a picture goes, in seconds: the least of these that has all samples.
const SPANS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// Rows of the table.
const ROWS: u32 = 12;

/// Seconds. Between samples that are further apart, no figure is known.
const LONGEST_STRETCH: f64 = 300.0;

type Figure = (&'static str, fn(&Sample, &Sample) -> f64);

const FIGURES: [Figure; 3] = [
    ("Calls per second", |before, after| rate(before, after, |sample| sample.calls)),
    ("Failed calls per second", |before, after| rate(before, after, |sample| sample.failed)),
    ("Calls due", |_, after| after.due),
];

fn rate(before: &Sample, after: &Sample, counter: fn(&Sample) -> f64) -> f64 {
    let (from, to) = (counter(before), counter(after));
    // Counters begin again with the server.
    (if to < from { to } else { to - from }) / (before.ago - after.ago)
}

/// The figures of the last hour at most, from samples in the order of their time.
pub fn last_hour(samples: &[Sample]) -> Markup {
    let oldest = samples.first().map_or(0.0, |sample| sample.ago);
    let span = SPANS.into_iter().find(|span| *span >= oldest).unwrap_or(SPANS[3]);
    let last = format!("last {}", duration(span as i64));
    let figures = FIGURES.map(|(title, value)| {
        let pairs = samples.iter().zip(samples.iter().skip(1));
        let near = pairs.filter(|(before, after)| (f64::EPSILON..LONGEST_STRETCH).contains(&(before.ago - after.ago)));
        let stretches =
            near.map(|(before, after)| Stretch { from: before.ago, to: after.ago, value: value(before, after) });
        (title, stretches.collect::<Vec<_>>())
    });
    let row = |number_of_row: u32| -> TextRow {
        let ends = |row: u32| span * f64::from(row) / f64::from(ROWS);
        let within = |stretch: &&Stretch| (ends(number_of_row)..ends(number_of_row + 1)).contains(&stretch.to);
        let of = |stretches: &Vec<Stretch>| highest(stretches.iter().filter(within)).map(number);
        let label = format!("{} ago", duration(ends(number_of_row + 1) as i64));
        [Some(label)].into_iter().chain(figures.iter().map(|(_, stretches)| of(stretches))).collect()
    };
    let rows: Vec<TextRow> = (0..ROWS).map(row).collect();
    let columns: Vec<_> = ["Since"].into_iter().chain(FIGURES.map(|(title, _)| title)).collect();
    html! {
        section aria-label="Figures" {
            div.figures { @for (title, stretches) in &figures { (chart(title, &last, span, stretches)) } }
            details {
                summary { "Highest figures of the " (last) }
                (table(&columns, &rows, |column, row| html! { (text(row, column)) }))
            }
        }
    }
}

fn highest<'a>(stretches: impl Iterator<Item = &'a Stretch>) -> Option<f64> {
    stretches.map(|stretch| stretch.value).reduce(f64::max)
}

/// A figure with its text. Its lines are level between two samples, and broken where no figure is known.
fn chart(title: &str, span_name: &str, span: f64, stretches: &[Stretch]) -> Markup {
    let highest = highest(stretches.iter());
    let place = |ago: f64, value: f64| {
        format!("{:.1},{:.1} ", 720.0 * (1.0 - ago / span), 59.0 - 57.0 * value / highest.unwrap_or_default().max(1.0))
    };
    let mut lines: Vec<String> = Vec::new();
    let mut end = f64::NAN;
    for Stretch { from, to, value } in stretches {
        if *from != end {
            lines.push(String::new());
        }
        end = *to;
        if let Some(line) = lines.last_mut() {
            line.push_str(&(place(*from, *value) + &place(*to, *value)));
        }
    }
    let last = stretches.last().map_or_else(|| "unknown".to_owned(), |last| number(last.value));
    let most = highest.map_or_else(|| "no samples yet".to_owned(), |highest| format!("at most {}", number(highest)));
    html! {
        figure {
            figcaption { (title) ": " b { (last) } ", " (most) }
            svg viewBox="0 0 720 60" preserveAspectRatio="none" role="img" {
                title { (title) ", " (span_name) }
                desc { "Now " (last) ", " (most) "." }
                path d="M0 59.5H720" {}
                @for line in lines { polyline points=(line.trim_end()) {} }
            }
        }
    }
}

/// A figure, with a decimal if it is small.
fn number(value: f64) -> String {
    if value < 10.0 && value.fract() != 0.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// When a step began and, if it has ended, when it ended, in seconds.
type Times = (f64, Option<f64>);

/// The time in which steps ran, and the present moment.
pub struct Span {
    begin: f64,
    seconds: f64,
    now: f64,
}

impl Span {
    pub fn of(steps: impl Iterator<Item = Times> + Clone, now: f64) -> Span {
        let begin = steps.clone().map(|(begin, _)| begin).fold(now, f64::min);
        let end = steps.map(|(begin, end)| end.unwrap_or(now).max(begin)).fold(begin, f64::max);
        Span { begin, seconds: (end - begin).max(0.001), now }
    }

    /// How long a step lasted, with its place in the span. A clock that was set back makes no negative length.
    pub fn bar(&self, (begin, end): Times) -> Markup {
        let lasted = (end.unwrap_or(self.now) - begin).max(0.0);
        let shown = if lasted < 10.0 { format!("{lasted:.3} s") } else { duration(lasted as i64) };
        let share = |seconds: f64| 100.0 * seconds / self.seconds;
        let width = share(lasted).max(0.5);
        html! {
            svg.bar aria-hidden="true" {
                rect.live[end.is_none()] x=(format!("{:.1}%", share(begin - self.begin).min(100.0 - width)))
                    width=(format!("{width:.1}%")) height="100%" {}
            }
            (shown) @if end.is_none() { " so far" }
        }
    }
}
