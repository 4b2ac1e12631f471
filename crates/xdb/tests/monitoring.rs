//! `contrib/monitoring`: the rules, the dashboard and the queries of postgres_exporter, against a real scrape.

mod common;

use common::{Serving, program};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

const RULES: &str = include_str!("../../../contrib/monitoring/xdb.rules.yml");
const DASHBOARD: &str = include_str!("../../../contrib/monitoring/grafana/xdb.json");
const QUERIES: &str = include_str!("../../../contrib/monitoring/postgres_exporter/queries.yaml");

/// What `xdb metrics` has beside the samples of `xdb.openmetrics()`.
const OF_THE_PROGRAM: &str = "xdb_scrape_error";

/// Metrics of rules and dashboard that `postgres_exporter` can't have: see the head of `queries.yaml`.
const NOT_OF_THE_EXPORTER: [&str; 2] = [OF_THE_PROGRAM, "xdb_calls_due"];

/// Metrics of which that file says that the exporter gives further samples with the value 0.
const WITH_ZEROS: [&str; 2] = ["xdb_engine_state", "xdb_breaker_state"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs promtool in `contrib/monitoring`. Returns what it prints.
fn promtool(arguments: &[&str]) -> String {
    let mut command = Command::new(root().join("scripts/promtool"));
    let output = command.args(arguments).current_dir(root().join("contrib/monitoring")).output();
    let output = output.expect("scripts/promtool");
    let says = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}:\n{says}");
    says
}

/// A database in which calls, RPCs, messages, timers and closes have been counted. `monitor` may read its metrics.
fn busy(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(1)),
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
    });
    let (mut db, mut superuser) = (app.db(), app.superuser());
    superuser.run("CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor; SELECT xdb.register_worker('pull', NULL, role => 'app')");
    db.run(
        "CREATE FUNCTION done(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}'::jsonb $$",
    );
    app.register("mail", &mailbox().rpc("ask", json!({})));
    let function = json!({"executeFunction": "public.done"});
    app.register("function", &Definition::starting_with("Only").step_with("Only", function));
    db.start("f", "function").go();
    db.start("read", "mail").go();
    db.rpc("read", "ask", json!(null));
    db.publish("read", "inbox", json!(1));
    db.start("late", "mail").timeout("1 s").go();
    for id in ["f", "read"] {
        db.completes(id);
    }
    wait_until("it has timed out", 20, || db.status("late") == "TIMEOUT");
    let mut monitor = app.session("monitor");
    for (metric, expected) in [
        ("xdb_steps_total", 2.0),
        ("xdb_processes_closed_total", 3.0),
        ("xdb_call_duration_seconds_count", 5.0),
        ("xdb_timers_fired_total", 1.0),
        ("xdb_messages_taken_total", 1.0),
    ] {
        wait_until(metric, 20, || {
            let sum = format!("SELECT sum(value) FROM xdb.metrics() WHERE name = {}", literal(metric));
            monitor.one::<f64>(&sum) >= expected
        });
    }
    (app, worker)
}

/// The names of metrics in a text, without those in lines of comments.
fn names_in(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(|line| line.split(|c| !is_part(c)));
    words.filter(|word| word.starts_with("xdb_")).collect()
}

/// The panels of the dashboard.
fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    dashboard["panels"].as_array().expect("it has panels").clone()
}

/// A query of `queries.yaml`.
#[derive(Default)]
struct Query {
    name: String,
    sql: String,
    labels: Vec<String>,
    /// Columns, and whether each is a histogram.
    metrics: Vec<(String, bool)>,
}

impl Query {
    /// All of them. The file has a plain form, so this is no parser of YAML.
    fn all() -> Vec<Query> {
        let (mut queries, mut column) = (Vec::<Query>::new(), String::new());
        for line in QUERIES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some(query) = queries.last_mut().filter(|_| line.starts_with(' ')) else {
                let name = line.strip_suffix(':').unwrap_or_else(|| panic!("{line}")).to_owned();
                queries.push(Query { name, ..Query::default() });
                continue;
            };
            let of_usage = line.strip_prefix("        usage: ");
            match (line, line.strip_prefix("    - ").and_then(|rest| rest.strip_suffix(':')), of_usage) {
                ("  query: |" | "  metrics:", _, _) => {}
                (_, Some(name), _) => name.clone_into(&mut column),
                (_, _, Some("\"LABEL\"")) => query.labels.push(column.clone()),
                (_, _, Some("\"HISTOGRAM\"")) => query.metrics.push((column.clone(), true)),
                (_, _, Some("\"COUNTER\"" | "\"GAUGE\"")) => query.metrics.push((column.clone(), false)),
                _ if line.starts_with("        description: ") => {}
                _ if query.labels.is_empty() && query.metrics.is_empty() => query.sql += &format!("{line}\n"),
                _ => panic!("{line}"),
            }
        }
        queries
    }

    /// The name of a column's metric.
    fn metric(&self, column: &str) -> String {
        format!("{}_{column}", self.name)
    }

    /// The samples that the exporter makes of its rows: an empty label is none.
    fn samples(&self, db: &mut Db) -> Vec<(String, f64)> {
        let mut samples = Vec::new();
        let rows = db.rows(&self.sql);
        for row in &rows {
            let label = |name: &String| row[name].as_str().map(|value| (name.clone(), value.to_owned()));
            let labels: BTreeMap<_, _> = self.labels.iter().filter_map(label).collect();
            let number = |column: &str| row[column].as_f64().unwrap_or_else(|| panic!("{}: {row}", self.name));
            for (column, is_histogram) in &self.metrics {
                let metric = self.metric(column);
                if !is_histogram {
                    samples.push((sample(&metric, &labels), number(column)));
                    continue;
                }
                for end in ["_sum", "_count"] {
                    samples.push((sample(&(metric.clone() + end), &labels), number(&(column.clone() + end))));
                }
                let list =
                    |column: &str| row[column].as_array().unwrap_or_else(|| panic!("{}: {row}", self.name)).clone();
                let (bounds, counts) = (list(column), list(&format!("{column}_bucket")));
                assert_eq!(bounds.len(), counts.len());
                for (bound, count) in bounds.iter().zip(&counts) {
                    let bound = format!("{:?}", bound.as_f64().expect("a number"));
                    let labels = labels.clone().into_iter().chain([("le".to_owned(), bound)]).collect();
                    samples.push((sample(&(metric.clone() + "_bucket"), &labels), count.as_f64().expect("a number")));
                }
            }
            // A column that is neither a label nor a metric would become a metric without a type.
            let columns: BTreeSet<_> = row.as_object().expect("a row").keys().cloned().collect();
            let ends = |(column, is_histogram): &(String, bool)| {
                let ends: &[&str] = if *is_histogram { &["", "_bucket", "_sum", "_count"] } else { &[""] };
                ends.iter().map(|end| format!("{column}{end}")).collect::<Vec<_>>()
            };
            let known = self.labels.iter().cloned().chain(self.metrics.iter().flat_map(ends));
            assert_eq!(columns, known.collect(), "{}", self.name);
        }
        assert!(!rows.is_empty(), "{} has no row", self.name);
        samples
    }
}

fn sample(name: &str, labels: &BTreeMap<String, String>) -> String {
    format!("{name} {labels:?}")
}

/// The samples of `xdb.metrics()` without those of infinite buckets, which an exporter makes of the count.
fn metrics(db: &mut Db) -> BTreeMap<String, f64> {
    let rows = db.rows("SELECT name, labels, value FROM xdb.metrics() WHERE labels ->> 'le' IS DISTINCT FROM '+Inf'");
    let of_row = |row: &Value| {
        let labels = row["labels"].as_object().expect("labels").iter();
        let labels = labels.map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned())).collect();
        (sample(row["name"].as_str().expect("a name"), &labels), row["value"].as_f64().expect("a number"))
    };
    rows.iter().map(of_row).collect()
}

#[test]
fn rules_and_dashboard_name_only_metrics_of_a_scrape() {
    let (app, _worker) = busy("monitoring_names");
    let mut command = program(app.cluster(), app.database(), "monitor");
    command.args(["metrics", "--listen", "127.0.0.1:0"]);
    let scrape = Serving::start(command).get("/metrics").body;
    let names = scrape.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let names: BTreeSet<_> = names.collect();
    assert!(names.contains(OF_THE_PROGRAM), "{scrape}");
    for (file, text) in [("the rules", RULES), ("the dashboard", DASHBOARD)] {
        let missing: Vec<_> = names_in(text).into_iter().filter(|name| !names.contains(name)).collect();
        assert!(missing.is_empty(), "no scrape has what {file} name: {missing:?}");
    }
    // The program was killed.
    app.done(&["connection to client lost"]);
}

#[test]
fn the_exporters_queries_give_a_monitor_the_samples_of_a_scrape() {
    let (app, _worker) = busy("monitoring_queries");
    let mut monitor = app.session("monitor");
    let queries = Query::all();
    let before = metrics(&mut monitor);
    let exported: BTreeMap<_, _> = queries.iter().flat_map(|query| query.samples(&mut monitor)).collect();
    let after = metrics(&mut monitor);
    for (sample, value) in &exported {
        match (before.get(sample), after.get(sample)) {
            (Some(before), Some(after)) => {
                assert!((*before..=*after).contains(value), "{sample}: {value} is not between {before} and {after}");
            }
            _ => {
                let may_be_more = WITH_ZEROS.iter().any(|name| sample.starts_with(&format!("{name} ")));
                assert!(may_be_more && *value == 0.0, "no scrape has {sample} {value}");
            }
        }
    }
    // All samples of these metrics are there, and these metrics are those of rules and dashboard.
    let name = |sample: &str| sample.split(' ').next().unwrap_or_default().to_owned();
    let names: BTreeSet<_> = exported.keys().map(|sample| name(sample)).collect();
    for sample in before.keys().filter(|sample| names.contains(&name(sample))) {
        assert!(exported.contains_key(sample), "no query gives {sample}");
    }
    let needed = names_in(RULES).union(&names_in(DASHBOARD)).map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let needed: BTreeSet<_> = needed.into_iter().filter(|name| !NOT_OF_THE_EXPORTER.contains(&&**name)).collect();
    let missing: Vec<_> = needed.difference(&names).collect();
    assert!(missing.is_empty(), "no query gives what rules and dashboard name: {missing:?}");
    app.done(&[]);
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    assert!(promtool(&["check", "rules", "xdb.rules.yml"]).contains("SUCCESS: 6 rules found"));
    promtool(&["test", "rules", "xdb.rules.test.yml"]);
}

/// Each page and heading that an alert names.
#[test]
fn alerts_name_pages_that_exist() {
    let pages: Vec<_> = RULES.lines().filter_map(|line| line.trim().strip_prefix("page: ")).collect();
    assert_eq!(pages.len(), RULES.matches("- alert: ").count());
    for page in pages {
        let (path, anchor) = page.split_once('#').expect("a heading");
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let anchor_of = |heading: &str| {
            let kept = heading.to_lowercase().replace(|c: char| !c.is_alphanumeric() && !" -_".contains(c), "");
            kept.trim().replace(' ', "-")
        };
        let headings = text.lines().filter(|line| line.starts_with("## "));
        assert!(headings.map(|line| anchor_of(&line[3..])).any(|found| found == anchor), "{page} is not there");
    }
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    let expressions = panels().into_iter().flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let expressions = expressions.map(|target| target["expr"].as_str().expect("an expression").to_owned());
    let rules = expressions.enumerate().map(|(at, expression)| {
        let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "5m");
        json!({"record": format!("expression_{at}"), "expr": expression})
    });
    // JSON is YAML.
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules.collect::<Vec<_>>()}]});
    let file = std::env::temp_dir().join(format!("xdb-dashboard-{}.yml", std::process::id()));
    std::fs::write(&file, rules.to_string()).expect("a file of ours");
    let says = promtool(&["check", "rules", file.to_str().expect("UTF-8")]);
    std::fs::remove_file(file).expect("a file of ours");
    let count = rules["groups"][0]["rules"].as_array().map_or(0, Vec::len);
    assert!(count > 30 && says.contains(&format!("SUCCESS: {count} rules found")), "{says}");
}

/// Grafana draws such panels on top of each other, or drops one, and reports no error.
#[test]
fn panels_of_the_dashboard_have_places_of_their_own() {
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64()), "{title} has the id of another panel");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a number"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is not within the 24 columns");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(place), "{title} lies on another panel");
        }
        let is_row = panel["type"] == "row";
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert_eq!(targets.is_empty(), is_row, "{title}");
        let sources =
            targets.iter().map(|target| &target["datasource"]).chain((!is_row).then_some(&panel["datasource"]));
        for source in sources {
            assert_eq!(*source, json!({"type": "prometheus", "uid": "${datasource}"}), "{title}");
        }
        assert!(is_row || panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
    }
}
