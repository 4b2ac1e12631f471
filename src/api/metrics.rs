//! `xdb.metrics()` and `xdb.openmetrics()`: counters and figures of the database, for Prometheus and others.
//!
//! A scrape reads shared memory, registrations, and the first entries of indexes. Names of processes, messages and
//! errors are no labels, so the number of samples is bounded by the registrations.

use super::admin;
use super::caller::{Caller, owner_name};
use crate::clock;
use crate::error;
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::extension;
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::param::from_postgres;
use crate::pg::process;
use crate::pg::shmem::call::{self, CountedWorkers};
use crate::pg::shmem::counters::{self, BOUNDS, CallEnd, CallKind, CountedCalls, OfEngine, OfMessages, OfType};
use crate::pg::shmem::{EngineState, Role, Slot, slow};
use crate::store::counted::{self, Figures};
use crate::store::registering::{self, ShownWorker};
use crate::store::registry::NO_WORKER;
use crate::store::{lines, pull, to_json, versions};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use xdb_engine::Timestamp;

/// The name of the worker that stands for functions of the database, and of the type that stands for all types without
/// counters of their own.
const FUNCTIONS: &str = "(function)";
const OTHER: &str = "other";

const KINDS: [(CallKind, &str); 3] =
    [(CallKind::WaitUntil, "wait_until"), (CallKind::Execute, "execute"), (CallKind::Rpc, "rpc")];
const ENDS: [(CallEnd, &str); 7] = [
    (CallEnd::Ok, "ok"),
    (CallEnd::WorkerError, "worker_error"),
    (CallEnd::Timeout, "timeout"),
    (CallEnd::Unreachable, "unreachable"),
    (CallEnd::InvalidAnswer, "invalid_answer"),
    (CallEnd::DatabaseError, "database_error"),
    (CallEnd::NotAllowed, "not_allowed"),
];
const CLOSES: [(OfType, &str); 4] = [
    (OfType::Completed, "completed"),
    (OfType::Failed, "failed"),
    (OfType::TimedOut, "timeout"),
    (OfType::Terminated, "terminated"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The end of a sample's name. In the classic format it also belongs to the name of the family.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// Samples of one kind. OpenMetrics calls this a metric family.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// What follows the name of the family and the suffix of its kind; labels; value.
    samples: Vec<(&'static str, Labels, f64)>,
}

impl Metric {
    fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, samples: Vec::new() }
    }

    /// With one sample, which has no labels.
    fn of(mut self, value: f64) -> Self {
        self.add(&[], value);
        self
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.samples.push(("", owned(labels), value));
    }

    /// Adds a histogram: its buckets, then the sum in microseconds.
    fn add_histogram(&mut self, labels: &[(&'static str, &str)], counts: &[u64]) {
        let (buckets, sum) = counts.split_at(BOUNDS.len() + 1);
        let bounds = BOUNDS.iter().map(|bound| format!("{:?}", *bound as f64 / 1e6)).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, bucket) in bounds.zip(buckets) {
            count += bucket;
            let labels = owned(labels).into_iter().chain([("le", bound)]).collect();
            self.samples.push(("_bucket", labels, count as f64));
        }
        self.samples.push(("_sum", owned(labels), sum[0] as f64 / 1e6));
        self.samples.push(("_count", owned(labels), count as f64));
    }

    fn unit(&self) -> &'static str {
        if self.name.ends_with("_seconds") { "seconds" } else { "" }
    }

    /// Rows of `xdb.metrics()`.
    fn rows(&self) -> Result<Vec<Vec<Value>>> {
        let row = |(suffix, labels, value): &(&str, Labels, f64)| {
            let labels: BTreeMap<_, _> = labels.iter().map(|(name, value)| (*name, value)).collect();
            let name = format!("{}{}{suffix}", self.name, self.kind.suffix());
            let mut row = crate::row![name, self.kind.word(), self.unit(), self.help];
            row.extend([Value::Json(to_json(&labels)?), Value::of(*value)]);
            Ok(row)
        };
        self.samples.iter().map(row).collect()
    }

    fn write(&self, text: &mut String, classic: bool) {
        let (name, kind, ending) = (self.name, self.kind, self.kind.suffix());
        // A String accepts everything.
        _ = match (classic, self.unit()) {
            (true, _) => {
                let kind = if kind == Kind::Info { Kind::Gauge } else { kind };
                writeln!(text, "# HELP {name}{ending} {}\n# TYPE {name}{ending} {}", self.help, kind.word())
            }
            (false, unit) => {
                let unit = if unit.is_empty() { String::new() } else { format!("# UNIT {name} {unit}\n") };
                write!(text, "# TYPE {name} {}\n{unit}# HELP {name} {}\n", kind.word(), self.help)
            }
        };
        for (suffix, labels, value) in &self.samples {
            text.extend([name, ending, suffix]);
            let mut before = '{';
            for (name, value) in labels {
                _ = write!(text, "{before}{name}=\"");
                push_escaped(text, value);
                text.push('"');
                before = ',';
            }
            let end = if labels.is_empty() { "" } else { "}" };
            _ = writeln!(text, "{end} {value}");
        }
    }
}

/// Appends the value of a label.
fn push_escaped(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' | '"' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            _ => text.push(c),
        }
    }
}

fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric::new(name, Kind::Gauge, help)
}

fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric::new(name, Kind::Counter, help)
}

fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric::new(name, Kind::Histogram, help)
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// `xdb.metrics()`: a row for each sample.
pub fn metrics(_: &Args) -> Result<Value> {
    let rows = families()?.iter().map(Metric::rows).collect::<Result<Vec<_>>>()?;
    Ok(Value::Rows(rows.into_iter().flatten().collect()))
}

/// `xdb.openmetrics()`: the same as text.
pub fn openmetrics(args: &Args) -> Result<Value> {
    let classic = args.boolean(0).unwrap_or(false);
    let mut text = String::new();
    families()?.iter().for_each(|family| family.write(&mut text, classic));
    if !classic {
        text.push_str("# EOF\n");
    }
    Ok(Value::of(text))
}

fn families() -> Result<Vec<Metric>> {
    let caller = Caller::reading()?;
    if !identity::is_administrator(caller.role) && !identity::monitors(caller.role) {
        return Err(error::no_figures(&owner_name(caller)?));
    }
    let now = Now::read(caller)?;
    let mut families = now.engine();
    families.extend(now.counters());
    families.extend(now.workers());
    families.extend(now.types());
    Ok(families)
}

/// Everything that a scrape reads.
struct Now {
    at: Timestamp,
    figures: Figures,
    backlog: (i64, Option<Timestamp>),
    /// Each with the calls that it has claimed, if it is a pull worker.
    workers: Vec<(ShownWorker, Option<i64>)>,
    calls: CountedWorkers,
    /// By the name of the worker.
    counted_calls: BTreeMap<String, CountedCalls>,
    /// By the name of the type.
    counted_types: BTreeMap<String, Vec<u64>>,
    counted: Option<counters::Counted>,
}

impl Now {
    fn read(caller: Caller) -> Result<Self> {
        let (at, database) = (clock::now(), process::database());
        let counted = counters::counted(database);
        caller.on_system_tables(|spi, _| {
            spi.with_latest_snapshot(|spi| {
                let leased = |worker: ShownWorker| {
                    let leased = || pull::leased(spi, worker.worker_id, clock::real());
                    let leased = worker.pulls.then(leased).transpose()?;
                    Ok((worker, leased))
                };
                let workers = registering::shown_workers(spi)?.into_iter().map(leased).collect::<Result<Vec<_>>>()?;
                let mut counted_calls = BTreeMap::<String, CountedCalls>::new();
                for (id, calls) in call::counted(database) {
                    let registered = workers.iter().find(|(worker, _)| worker.worker_id == id);
                    let name = registered.map(|(worker, _)| worker.name.as_str());
                    let Some(name) = name.or((id == NO_WORKER).then_some(FUNCTIONS)) else { continue };
                    counted_calls.entry(name.to_owned()).and_modify(|sum| sum.add(&calls)).or_insert(calls);
                }
                let mut counted_types = BTreeMap::new();
                if let Some(counted) = &counted {
                    let ids: Vec<_> = counted.types.iter().map(|(id, _)| *id).collect();
                    let names = counted::names_of_types(spi, &ids)?;
                    let own = counted.types.iter().filter_map(|(id, counts)| Some((names.get(id)?.as_str(), counts)));
                    let other =
                        Some((OTHER, &counted.other)).filter(|(_, counts)| counts.iter().any(|count| *count > 0));
                    for (name, counts) in own.chain(other) {
                        let sum = counted_types.entry(name.to_owned()).or_insert_with(|| vec![0; counts.len()]);
                        counters::add_to(sum, counts);
                    }
                }
                let figures = counted::figures(spi, at)?;
                Ok(Self {
                    at,
                    figures: figures.ok_or_else(|| PgError::internal("a query without rows"))?,
                    backlog: lines::backlog(spi, at)?.unwrap_or_default(),
                    workers,
                    calls: CountedWorkers::of_database(database),
                    counted_calls,
                    counted_types,
                    counted,
                })
            })
        })
    }

    /// Figures of the engine.
    fn engine(&self) -> Vec<Metric> {
        let database = process::database();
        let main = Slot::find(database, Role::Scheduler).map(Slot::status).unwrap_or_default();
        let running = Role::runners().filter_map(|role| Slot::find(database, role)).map(Slot::status);
        let running: Vec<_> = running.filter(|runner| runner.pid.is_some()).collect();
        let in_flight = main.in_flight + running.iter().map(|runner| runner.in_flight).sum::<i64>();
        let (backlog, oldest) = self.backlog;
        let seconds = |micros: i64| micros.max(0) as f64 / 1e6;

        let help = "Versions of the library, of its schema and of Postgres.";
        let mut info = Metric::new("xdb_engine", Kind::Info, help);
        let schema = extension::with_version(|version| Some(version.to_owned())).unwrap_or_default();
        let versions =
            [("library_version", versions::OWN), ("schema_version", &schema), ("postgres", &self.figures.postgres)];
        info.add(&versions, 1.0);
        let mut state = gauge("xdb_engine_state", "1 for the state that the engine is in, 0 for the others.");
        for word in EngineState::ALL.iter().map(|state| state.as_str()).collect::<BTreeSet<_>>() {
            state.add(&[("state", word)], f64::from(u8::from(word == main.state.as_str())));
        }
        let started = if main.started_at == 0 { 0 } else { from_postgres(main.started_at).0 };
        let overdue = guc::retention().zip(self.figures.oldest_closed).map(|(kept, age)| age - kept.0);
        let overdue = overdue.into_iter().chain(self.figures.oldest_overdue).max().unwrap_or(0);
        let started_help = "When the scheduler started, since the Unix epoch; 0 without a scheduler.";
        let oldest_help = "For how long the first due call has been due, under way or not.";
        let overdue_help = "For how long the oldest closed execution should have been deleted.";
        vec![
            info,
            state,
            gauge("xdb_engine_start_time_seconds", started_help).of(seconds(started)),
            gauge("xdb_calls_due", "Calls that are due and not under way, counted up to 10000.")
                .of((backlog - in_flight).max(0) as f64),
            gauge("xdb_oldest_due_age_seconds", oldest_help)
                .of(seconds(oldest.map_or(0, |oldest| self.at.since(oldest)))),
            gauge("xdb_slow_objects", "Marks of slow tables, functions and roles.")
                .of(slow::marks(database).count() as f64),
            gauge("xdb_runners", "Runners that run now.").of(running.len() as f64),
            gauge("xdb_retention_overdue_seconds", overdue_help).of(seconds(overdue)),
        ]
    }

    /// Counters of turns, timers and messages.
    fn counters(&self) -> Vec<Metric> {
        let Some(counted) = &self.counted else { return Vec::new() };
        let mut turns = histogram("xdb_turn_duration_seconds", "Time of a turn of the scheduler or of a runner.");
        let mut timers = histogram("xdb_timer_lateness_seconds", "Time between the time of a timer and its effect.");
        let mut published = counter("xdb_messages_published", "Messages that were published to queues.");
        let mut taken = counter("xdb_messages_taken", "Messages that steps have consumed.");
        let of_engine = |of: OfEngine| &counted.engine[of as usize];
        let number = |of| of_engine(of)[..=BOUNDS.len()].iter().sum::<u64>() as f64;
        turns.add_histogram(&[], of_engine(OfEngine::Turns));
        timers.add_histogram(&[], of_engine(OfEngine::Timers));
        let of_messages = |of: OfMessages| counted.messages[of as usize] as f64;
        published.add(&[("scope", "local")], of_messages(OfMessages::PublishedLocal));
        published.add(&[("scope", "global")], of_messages(OfMessages::PublishedGlobal));
        taken.add(&[("scope", "local")], of_messages(OfMessages::ConsumedLocal));
        taken.add(&[("scope", "global")], of_messages(OfMessages::ConsumedGlobal));
        vec![
            counter("xdb_turns", "Turns of the scheduler and of runners.").of(number(OfEngine::Turns)),
            turns,
            counter("xdb_timers_fired", "Timers that have fired.").of(number(OfEngine::Timers)),
            timers,
            published,
            taken,
        ]
    }

    /// Figures and counters of workers.
    fn workers(&self) -> [Metric; 7] {
        let mut in_flight =
            gauge("xdb_calls_in_flight", "Calls under way; of a pull worker the claimed ones, counted up to 10000.");
        let mut limit = gauge("xdb_worker_concurrency_limit", "The most calls of states at the worker at one time.");
        let mut breaker =
            gauge("xdb_breaker_state", "1 for the state that the breaker of the worker is in, 0 for the others.");
        for (worker, leased) in &self.workers {
            let name = ("worker", worker.name.as_str());
            if let Some(leased) = leased {
                in_flight.add(&[name], *leased as f64);
                continue;
            }
            limit.add(&[name], f64::from(worker.max_concurrency));
            let Some(calls) = self.calls.get(worker.worker_id) else { continue };
            in_flight.add(&[name], f64::from(calls.in_flight));
            for state in ["closed", "half-open", "open"] {
                breaker.add(&[name, ("state", state)], f64::from(u8::from(state == admin::breaker(calls.open))));
            }
        }
        let mut ended = counter("xdb_calls", "Calls that have ended, by outcome.");
        let mut time = histogram("xdb_call_duration_seconds", "Time of a call, without calls of pull workers.");
        let mut repeats = counter("xdb_call_repeats", "Calls that were made again as the same attempt.");
        let mut rejected = counter("xdb_answers_rejected", "Answers that came too late or twice.");
        for (name, calls) in &self.counted_calls {
            let name = ("worker", name.as_str());
            for (kind, api) in KINDS {
                // Kinds of calls that the worker never had are left out.
                if calls.ended(kind).iter().any(|count| *count > 0) {
                    ENDS.iter().for_each(|(end, outcome)| {
                        ended.add(&[name, ("api", api), ("outcome", outcome)], calls.ended(kind)[*end as usize] as f64);
                    });
                }
                if calls.durations(kind).iter().any(|count| *count > 0) {
                    time.add_histogram(&[name, ("api", api)], calls.durations(kind));
                }
            }
            repeats.add(&[name], calls.repeats() as f64);
            rejected.add(&[name], calls.rejected() as f64);
        }
        [in_flight, limit, breaker, ended, time, repeats, rejected]
    }

    /// Counters of process types.
    fn types(&self) -> [Metric; 4] {
        let mut started = counter("xdb_processes_started", "Executions that were started.");
        let mut closed = counter("xdb_processes_closed", "Executions that have closed, by status.");
        let mut steps = counter("xdb_steps", "Steps that have completed.");
        let mut failures = counter("xdb_state_failures", "Steps whose retries were spent.");
        for (name, counts) in &self.counted_types {
            let (name, count) = (("type", name.as_str()), |of: OfType| counts[of as usize] as f64);
            started.add(&[name], count(OfType::Started));
            CLOSES.iter().for_each(|(of, status)| closed.add(&[name, ("status", status)], count(*of)));
            steps.add(&[name], count(OfType::Steps));
            failures.add(&[name], count(OfType::StateFailures));
        }
        [started, closed, steps, failures]
    }
}
