//! The small pictures of the console: from figures to a golden file.

mod common;

use common::is_golden;
use xdb_tools::console::pictures::{Sample, Span, last_hour};

/// Counters at moments: how long ago, calls, failed calls, calls that are due.
fn samples(all: &[(f64, f64, f64, f64)]) -> Vec<Sample> {
    all.iter().map(|&(ago, calls, failed, due)| Sample { ago, calls, failed, due }).collect()
}

#[test]
fn the_last_hour_is_drawn_from_samples() {
    let busy = samples(&[
        (3700.0, 0.0, 0.0, 0.0),
        (3600.0, 500.0, 0.0, 7.0),
        (3595.0, 1000.0, 1.0, 0.0),
        // Samples are missing for half an hour: no figure is known.
        (1200.0, 90_000.0, 1.0, 12_000.0),
        (1195.0, 90_001.0, 2.0, 10_000.0),
        // The server was started again: its counters began again.
        (10.0, 3.0, 0.0, 0.0),
        (5.0, 5.0, 1.0, 0.0),
        (0.0, 15.0, 1.0, 1.0),
    ]);
    let empty = last_hour(&[]).into_string();
    let first = last_hour(&samples(&[(0.0, 7.0, 0.0, 0.0)])).into_string();
    assert_eq!(empty, first, "one sample gives no rate");
    let shown = format!("{}\n\n{empty}\n", last_hour(&busy).into_string());
    is_golden("pictures-hour.html", &shown.replace("><", ">\n<"));
}

#[test]
fn two_samples_at_one_moment_give_no_figure() {
    let shown = last_hour(&samples(&[(1.0, 1.0, 0.0, 0.0), (1.0, 9.0, 0.0, 0.0)])).into_string();
    assert!(!shown.contains("inf") && !shown.contains("NaN") && !shown.contains("<polyline"), "{shown}");
}

#[test]
fn steps_have_bars_of_the_time_that_they_took() {
    let steps = [
        (1000.0, Some(1000.012)),
        (1000.012, Some(1041.0)),
        (1041.0, None),
        // The clock was set back.
        (1100.0, Some(1000.0)),
    ];
    let span = Span::of(steps.into_iter(), 1090.5);
    let bars: String = steps.into_iter().map(|step| span.bar(step).into_string() + "\n").collect();
    let alone = Span::of(std::iter::once((5.0, None)), 5.0);
    is_golden("pictures-bars.html", &(bars + &alone.bar((5.0, None)).into_string() + "\n"));
}
