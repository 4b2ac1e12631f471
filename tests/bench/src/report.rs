//! Prints the table of results, and writes the JSON file.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::stats::Spread;

/// The names of the figures that have a column of their own in the table.
pub mod figure {
    pub const LOAD: &str = "load before";
    pub const STEPS: &str = "steps/s";
    pub const PROCESSES: &str = "processes/s";
    pub const P50: &str = "p50 ms";
    pub const P95: &str = "p95 ms";
    pub const P99: &str = "p99 ms";
    pub const WAL: &str = "WAL bytes/step";
    pub const COMMITS: &str = "commits/step";
    pub const SCHEDULER: &str = "scheduler CPU s/1000 steps";
    pub const BACKENDS: &str = "backends CPU s/1000 steps";
    pub const WORKER: &str = "worker CPU s/1000 steps";
    pub const DEAD: &str = "dead tuples";
    pub const PEAK: &str = "scheduler peak MB";
}

/// Figure, heading, and digits after the point.
const COLUMNS: &[(&str, &str, usize)] = &[
    (figure::LOAD, "load", 1),
    (figure::STEPS, "steps/s", 0),
    (figure::PROCESSES, "proc/s", 0),
    (figure::P50, "p50 ms", 2),
    (figure::P95, "p95 ms", 2),
    (figure::P99, "p99 ms", 2),
    (figure::WAL, "WAL B/step", 0),
    (figure::COMMITS, "commits/step", 3),
    (figure::SCHEDULER, "CPU sched", 3),
    (figure::BACKENDS, "backends", 3),
    (figure::WORKER, "worker", 3),
    (figure::DEAD, "dead rows", 0),
    (figure::PEAK, "peak MB", 0),
];

/// The figures of one measurement, in the order in which they were set.
#[derive(Clone, Debug, Default)]
pub struct Run(Vec<(String, f64)>);

impl Run {
    pub fn set(&mut self, name: &str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Sets all figures of another one.
    pub fn take(&mut self, other: Run) {
        other.0.iter().for_each(|(name, value)| self.set(name, *value));
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// The progress of a run, for a person who watches it. The table shows the costs.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brief = [figure::LOAD, figure::STEPS, figure::PROCESSES, figure::P50, figure::P99];
        let is_brief = |name: &str| brief.contains(&name) || COLUMNS.iter().all(|(column, ..)| *column != name);
        let figures = self.0.iter().filter(|(name, _)| is_brief(name));
        let figures: Vec<String> = figures.map(|(name, value)| format!("{name} {}", short(*value))).collect();
        f.write_str(&figures.join(", "))
    }
}

/// A bound on the median of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A promise about a row.
#[derive(Clone, Debug)]
pub struct Target {
    pub figure: String,
    pub bound: Bound,
}

impl Target {
    pub fn at_least(figure: &str, bound: f64) -> Target {
        Target { figure: figure.to_owned(), bound: Bound::AtLeast(bound) }
    }

    pub fn at_most(figure: &str, bound: f64) -> Target {
        Target { figure: figure.to_owned(), bound: Bound::AtMost(bound) }
    }

    /// Whether the median meets the target. A figure that was not measured, or is not a number, does not.
    fn is_met(&self, median: Option<f64>) -> bool {
        median.is_some_and(|median| match self.bound {
            Bound::AtLeast(bound) => median >= bound,
            Bound::AtMost(bound) => median <= bound,
        })
    }

    fn words(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("{} at least {}", self.figure, short(bound)),
            Bound::AtMost(bound) => format!("{} at most {}", self.figure, short(bound)),
        }
    }
}

/// One line of the table: a thing that was measured several times.
#[derive(Clone, Debug)]
pub struct Row {
    /// `W1` and the like.
    pub workload: &'static str,
    /// The description of the run, with its sizes.
    pub ran: String,
    /// The two moments between which the latency is measured.
    pub latency: &'static str,
    pub runs: Vec<Run>,
    pub targets: Vec<Target>,
}

impl Row {
    /// The median and the spread of a figure over the runs that have it.
    pub fn spread(&self, name: &str) -> Option<Spread> {
        Spread::of(&self.runs.iter().filter_map(|run| run.get(name)).collect::<Vec<_>>())
    }

    /// Names of all figures, each once, in the order of their first use.
    fn figures(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.runs.iter().flat_map(|run| &run.0) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    fn json(&self) -> Value {
        let figures = self.figures().into_iter().filter_map(|name| {
            let spread = self.spread(name)?;
            let runs: Vec<f64> = self.runs.iter().filter_map(|run| run.get(name)).collect();
            let (median, min, max) = (spread.median, spread.min, spread.max);
            Some((name.to_owned(), json!({"median": median, "min": min, "max": max, "runs": runs})))
        });
        let targets = self.targets.iter().map(|target| {
            let median = self.spread(&target.figure).map(|spread| spread.median);
            json!({"target": target.words(), "median": median, "met": target.is_met(median)})
        });
        json!({
            "workload": self.workload,
            "ran": self.ran,
            "latency": self.latency,
            "runs": self.runs.len(),
            "figures": figures.collect::<serde_json::Map<_, _>>(),
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

/// The table: medians, and below them the spread.
pub fn table(rows: &[Row]) -> String {
    let mut lines = vec![heading()];
    for row in rows {
        lines.push(cells(row, row.workload, |spread, digits| format!("{:.digits$}", spread.median)));
        lines.push(cells(row, "", |spread, digits| {
            if spread.min == spread.max {
                String::new()
            } else {
                format!("{:.digits$}-{:.digits$}", spread.min, spread.max)
            }
        }));
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..COLUMNS.len() + 1).map(width).collect();
    let print = |line: &[String]| -> String {
        let cells = line.iter().zip(&widths).skip(1).map(|(cell, width)| format!("{cell:>width$}"));
        let text = format!("{:<width$}  {}", line[0], cells.collect::<Vec<_>>().join("  "), width = widths[0]);
        text.trim_end().to_owned()
    };
    let mut text = print(&lines[0]) + "\n";
    for (row, lines) in rows.iter().zip(lines[1..].chunks(2)) {
        for line in lines.iter().filter(|line| line.iter().any(|cell| !cell.is_empty())) {
            writeln!(text, "{}", print(line)).expect("a string takes everything");
        }
        text.push_str(&details(row));
    }
    text
}

fn heading() -> Vec<String> {
    std::iter::once("").chain(COLUMNS.iter().map(|(_, heading, _)| *heading)).map(str::to_owned).collect()
}

fn cells(row: &Row, first: &str, cell: impl Fn(Spread, usize) -> String) -> Vec<String> {
    let figures = COLUMNS.iter().map(|(name, _, digits)| row.spread(name).map_or(String::new(), |s| cell(s, *digits)));
    std::iter::once(first.to_owned()).chain(figures).collect()
}

/// The description of a row, its figures without a column, and its targets.
fn details(row: &Row) -> String {
    let mut text = format!("    {}; runs: {}", row.ran, row.runs.len());
    if !row.latency.is_empty() {
        write!(text, "; latency: {}", row.latency).expect("a string takes everything");
    }
    text.push('\n');
    for name in row.figures() {
        if COLUMNS.iter().any(|(column, ..)| *column == name) {
            continue;
        }
        if let Some(Spread { median, min, max }) = row.spread(name) {
            writeln!(text, "    {name}: {} ({}-{})", short(median), short(min), short(max))
                .expect("a string takes everything");
        }
    }
    for target in &row.targets {
        let median = row.spread(&target.figure).map(|spread| spread.median);
        let verdict = if target.is_met(median) { "met" } else { "MISSED" };
        let is = median.map_or("nothing".to_owned(), short);
        writeln!(text, "    target {}: {is}, {verdict}", target.words()).expect("a string takes everything");
    }
    text
}

/// A number with about four significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.01 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

/// All results as JSON, for other programs.
pub fn json(about: Value, rows: &[Row], violations: &[String]) -> Value {
    json!({
        "about": about,
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "violations": violations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(figures: &[(&str, f64)]) -> Run {
        let mut run = Run::default();
        figures.iter().for_each(|(name, value)| run.set(name, *value));
        run
    }

    fn row() -> Row {
        Row {
            workload: "W1",
            ran: "3 processes".into(),
            latency: "start to end",
            runs: [30.0, 10.0, 20.0].map(|steps| run(&[(figure::STEPS, steps), ("repeats", steps / 10.0)])).to_vec(),
            targets: vec![Target::at_least(figure::STEPS, 20.0), Target::at_most("repeats", 1.0)],
        }
    }

    #[test]
    fn the_table_has_medians_spreads_and_verdicts() {
        let text = table(&[row()]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("steps/s"), "{text}");
        assert!(lines[1].starts_with("W1") && lines[1].ends_with(" 20"), "{text}");
        assert_eq!(lines[2].trim(), "10-30");
        assert_eq!(lines[3], "    3 processes; runs: 3; latency: start to end");
        assert_eq!(lines[4], "    repeats: 2.00 (1.00-3.00)");
        assert_eq!(lines[5], "    target steps/s at least 20.0: 20.0, met");
        assert_eq!(lines[6], "    target repeats at most 1.00: 2.00, MISSED");
        // The figures stand below their heading.
        let end = lines[0].find("steps/s").expect("a column") + "steps/s".len();
        assert_eq!(lines[1].len(), end);
    }

    #[test]
    fn a_missing_measurement_meets_no_target() {
        let unmeasured = Row { runs: Vec::new(), ..row() };
        assert_eq!(table(&[unmeasured]).matches("MISSED").count(), 2);
        assert!(!Target::at_most("x", 1.0).is_met(Some(f64::NAN)));
    }

    #[test]
    fn json_has_every_run() {
        let value = json(json!({"seed": 1}), &[row()], &["a violation".to_owned()]);
        let figures = &value["rows"][0]["figures"];
        assert_eq!(
            figures[figure::STEPS],
            json!({"median": 20.0, "min": 10.0, "max": 30.0, "runs": [30.0, 10.0, 20.0]})
        );
        assert_eq!(value["rows"][0]["targets"][0]["met"], json!(true));
        assert_eq!(value["rows"][0]["targets"][1]["met"], json!(false));
        assert_eq!(value["violations"], json!(["a violation"]));
    }

    #[test]
    fn a_figure_that_is_set_again_is_replaced() {
        let mut run = run(&[("a", 1.0)]);
        run.set("a", 2.0);
        assert_eq!(run.get("a"), Some(2.0));
        assert_eq!(run.to_string(), "a 2.00");
    }
}
