//! The launcher: one process without a database. It keeps a scheduler running for each database with the extension, and
//! starts the runners that schedulers ask for.
//!
//! The launcher can't read whether a database has the extension. So it starts a scheduler once in each database.
//! Without the extension that scheduler ends. When a session creates the extension there, the launcher starts one
//! again. Shared memory holds everything that running schedulers need, so a new launcher continues with them.
//!
//! Limitations: a new database is found within 5 seconds if no session wakes the launcher. It starts up to 4 processes
//! at a time.
use crate::guc;
use crate::pg::databases::{self, Database};
use crate::pg::shmem::{self, EngineState, ExitReason, Role, Slot, SlotPhase, call, counters};
use crate::pg::worker::{self, Handle};
use crate::pg::{crash, latch, process, raw, session};
use pgrx::{pg_guard, pg_sys, warning};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How often the list of databases is read if no session asks for it.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// A process that ran for this time, in microseconds, has not failed at its start.
const RAN_WELL: i64 = 10_000_000;
/// How long a start may take, in microseconds, before it counts as lost. Used if a new launcher has no handle of the
/// process.
const START_LOST: i64 = 10_000_000;
/// The most starts at the same time, so that a cluster of many databases does not use up the worker processes.
const STARTS_AT_ONCE: usize = 4;
/// How long a process may take to end after it was asked to leave.
const LEAVE_POLITELY: Duration = Duration::from_secs(1);
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// Registers the launcher. Called only while the server loads its `shared_preload_libraries`.
pub fn register() {
    worker::describe("xdb launcher", "xdb launcher", "xdb_launcher_main")
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

/// Entry point of the launcher process.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn xdb_launcher_main(_argument: pg_sys::Datum) {
    process::connect_launcher();
    session::report_activity(None);
    let wait_set = latch::WaitSet::new(None);
    let mut launcher = Launcher::default();
    loop {
        let pause = launcher.step();
        let waited = wait_set.wait(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX).max(1));
        if waited == latch::Waited::Reloaded {
            // A reload makes the launcher check all databases again, in case it has missed something.
            launcher.poke_all();
        }
    }
}

/// What the launcher knows of a database besides its slots. A new launcher starts without it.
#[derive(Default)]
struct KnownDatabase {
    /// A scheduler ran there and found no extension.
    absent: bool,
    /// A session has created the extension since the last start.
    poked: bool,
    processes: [KnownProcess; Role::COUNT],
}

#[derive(Default)]
struct KnownProcess {
    handle: Option<Handle>,
    backoff: Duration,
    retry_at: Option<Instant>,
    asked_to_leave: Option<Instant>,
}

#[derive(Default)]
struct Launcher {
    databases: Vec<Database>,
    scanned_at: Option<Instant>,
    known: HashMap<pg_sys::Oid, KnownDatabase>,
    /// Until this moment no process is started, because all worker processes were in use. With the length of that
    /// pause.
    workers_used_up: Option<(Instant, Duration)>,
    complained_at: HashMap<&'static str, Instant>,
}

impl Launcher {
    /// Does the work that is due, and returns how long until the next.
    fn step(&mut self) -> Duration {
        let now = Instant::now();
        let pokes = shmem::take_pokes();
        for database in pokes.databases {
            self.poke(database);
        }
        if pokes.all {
            self.poke_all();
        }
        if pokes.rescan || self.scanned_at.is_none_or(|at| now - at >= SCAN_INTERVAL) {
            self.databases = databases::read();
            self.scanned_at = Some(now);
            let exist: HashSet<_> = self.databases.iter().map(|d| d.oid).collect();
            self.known.retain(|oid, _| exist.contains(oid));
        }
        let wanted = self.wanted();
        for slot in Slot::all() {
            self.supervise(slot, &wanted, now);
        }
        let mut wake_at = self.scanned_at.unwrap_or(now) + SCAN_INTERVAL;
        for (oid, name) in &wanted {
            if let Some(at) = self.start_missing(*oid, name, now) {
                wake_at = wake_at.min(at);
            }
        }
        let leaving = self.known.values().flat_map(|k| &k.processes).filter_map(|p| p.asked_to_leave);
        if let Some(since) = leaving.min() {
            wake_at = wake_at.min((since + LEAVE_POLITELY).max(now + FIRST_BACKOFF));
        }
        wake_at.saturating_duration_since(now)
    }

    fn poke_all(&mut self) {
        let all: Vec<_> = self.known.keys().copied().collect();
        all.into_iter().for_each(|database| self.poke(database));
    }

    fn poke(&mut self, database: pg_sys::Oid) {
        let known = self.known.entry(database).or_default();
        known.absent = false;
        known.poked = true;
        for process in &mut known.processes {
            process.retry_at = None;
            process.backoff = Duration::ZERO;
        }
    }

    /// The databases that should have a scheduler, or be tried.
    fn wanted(&mut self) -> HashMap<pg_sys::Oid, String> {
        if !guc::ENABLED.get() {
            return HashMap::new();
        }
        let list = guc::text(&guc::DATABASES);
        let Some(names) = guc::listed_databases(&list) else {
            self.complain("names", || format!("xdb: no engine runs, because xdb.databases can't be read: {list}"));
            return HashMap::new();
        };
        self.databases
            .iter()
            .filter(|d| names.is_empty() || names.contains(&d.name))
            .map(|d| (d.oid, d.name.clone()))
            .collect()
    }

    // Long because it handles all that can have become of a process, in the order in which it happens.
    /// Updates a slot after the end of its process, and ends processes that are not wanted.
    fn supervise(&mut self, slot: Slot, wanted: &HashMap<pg_sys::Oid, String>, now: Instant) {
        let (database, role) = (slot.database(), slot.role());
        let is_wanted = wanted.contains_key(&database);
        let known = self.known.entry(database).or_default();
        let mine = &mut known.processes[role.index()];
        if slot.phase() == SlotPhase::Requested {
            let lost = match &mine.handle {
                Some(handle) => handle.has_stopped(),
                None => raw::now_micros() - slot.started_at() > START_LOST,
            };
            // The process may have claimed the slot, and even have ended, between the two checks.
            if lost && slot.give_up_start() {
                slot.set_exit_reason(ExitReason::Restart);
            }
        }
        match slot.phase() {
            SlotPhase::Requested | SlotPhase::Idle => {}
            SlotPhase::Live => {
                if is_wanted {
                    mine.asked_to_leave = None;
                } else {
                    match mine.asked_to_leave {
                        None => {
                            slot.ask_to_leave();
                            mine.asked_to_leave = Some(now);
                        }
                        Some(since) if now - since >= LEAVE_POLITELY => slot.terminate(),
                        Some(_) => {}
                    }
                }
            }
            SlotPhase::Exited => {
                mine.handle = None;
                mine.asked_to_leave = None;
                // The worker process is free once the postmaster has seen the end.
                if self.workers_used_up.is_some() {
                    self.workers_used_up = Some((now + FIRST_BACKOFF, FIRST_BACKOFF));
                }
                match slot.exit_reason() {
                    ExitReason::Dropped => {
                        if role == Role::Scheduler {
                            known.absent = !known.poked;
                            call::forget_database(database);
                        }
                        slot.free();
                    }
                    // The scheduler asks for the runner again when it is needed.
                    ExitReason::Left if role != Role::Scheduler => slot.free(),
                    ExitReason::Left => {
                        mine.backoff = Duration::ZERO;
                        mine.retry_at = None;
                        slot.set_phase(SlotPhase::Idle);
                    }
                    ExitReason::Restart => {
                        mine.back_off(slot.ran_for() >= RAN_WELL, now);
                        slot.set_phase(SlotPhase::Idle);
                        slot.set_state(EngineState::BackingOff);
                    }
                }
            }
        }
        let is_wanted = is_wanted && !known.absent && is_asked_for(database, role);
        if slot.is_allocated() && slot.phase() == SlotPhase::Idle && !is_wanted {
            slot.set_state(EngineState::Stopped);
            slot.free();
        }
    }

    /// Starts the processes of a database that should run and don't. Returns when to try again.
    fn start_missing(&mut self, database: pg_sys::Oid, name: &str, now: Instant) -> Option<Instant> {
        if self.known.entry(database).or_default().absent {
            return None;
        }
        let roles = (0..Role::COUNT).map(Role::from_index).filter(|role| is_asked_for(database, *role));
        let later = roles.filter_map(|role| match Slot::find(database, role) {
            Some(slot) if slot.phase() != SlotPhase::Idle => None,
            slot => self.start(database, name, role, slot, now),
        });
        later.min()
    }

    /// Starts one process. If it can't be started now, returns when to try again.
    // Long because each reason that prevents a start is handled where it is found.
    fn start(
        &mut self,
        database: pg_sys::Oid,
        name: &str,
        role: Role,
        slot: Option<Slot>,
        now: Instant,
    ) -> Option<Instant> {
        let known = self.known.entry(database).or_default();
        if let Some(at) = known.processes[role.index()].retry_at.filter(|at| *at > now) {
            return Some(at);
        }
        if let Some((at, _)) = self.workers_used_up.filter(|(at, _)| *at > now) {
            // This includes a database in which no start was tried yet.
            if let Some(slot) = slot.or_else(|| new_slot(database, role)) {
                slot.set_state(EngineState::BackingOff);
                slot.record_error(&worker::all_in_use());
            }
            return Some(at);
        }
        if let Some(until) = shmem::blocked_until(database) {
            let left = u64::try_from(until - raw::now_micros()).unwrap_or(0);
            return Some(now + Duration::from_micros(left));
        }
        if Slot::all().filter(|slot| slot.phase() == SlotPhase::Requested).count() >= STARTS_AT_ONCE {
            return Some(now + FIRST_BACKOFF);
        }
        let Some(slot) = slot.or_else(|| new_slot(database, role)) else {
            self.complain("slots", || format!("xdb: database \"{name}\" waits for its engine: all slots are in use"));
            return Some(now + LONGEST_BACKOFF);
        };
        let known = self.known.entry(database).or_default();
        known.poked = false;
        let argument = slot.request_start();
        crash::point("launcher-found");
        match launch(name, role, argument) {
            Some(handle) => {
                crash::point("launcher-started");
                known.processes[role.index()].handle = Some(handle);
                self.workers_used_up = None;
                if let (Role::Runner(number), Some(scheduler)) = (role, Slot::find(database, Role::Scheduler)) {
                    scheduler.runner_started(number);
                }
                None
            }
            None => {
                slot.give_up_start();
                slot.set_phase(SlotPhase::Idle);
                slot.set_state(EngineState::BackingOff);
                slot.record_error(&worker::all_in_use());
                let pause = self.workers_used_up.map_or(FIRST_BACKOFF, |(_, before)| before * 2);
                let pause = pause.min(LONGEST_BACKOFF);
                self.workers_used_up = Some((now + pause, pause));
                self.complain("workers", || {
                    format!(
                        "xdb: database \"{name}\" waits for an engine process: {}; raise max_worker_processes if this persists",
                        worker::all_in_use()
                    )
                });
                Some(now + pause)
            }
        }
    }

    fn complain(&mut self, kind: &'static str, message: impl FnOnce() -> String) {
        let now = Instant::now();
        let recently = self.complained_at.get(kind).is_some_and(|at| now - *at < COMPLAINT_INTERVAL);
        if !recently {
            self.complained_at.insert(kind, now);
            warning!("{}", message());
        }
    }
}

impl KnownProcess {
    fn back_off(&mut self, ran_well: bool, now: Instant) {
        self.backoff =
            if ran_well || self.backoff.is_zero() { FIRST_BACKOFF } else { (self.backoff * 2).min(LONGEST_BACKOFF) };
        self.retry_at = Some(now + self.backoff);
    }
}

/// Whether this process should run in its database: a scheduler always, a runner if the scheduler has asked for it.
fn is_asked_for(database: pg_sys::Oid, role: Role) -> bool {
    match role {
        Role::Scheduler => true,
        Role::Runner(number) => Slot::find(database, Role::Scheduler).is_some_and(|slot| slot.wants_runner(number)),
    }
}

/// A slot whose counters begin at zero. None: all are in use.
fn new_slot(database: pg_sys::Oid, role: Role) -> Option<Slot> {
    let slot = Slot::allocate(database, role)?;
    counters::clear(slot);
    Some(slot)
}

/// Asks the postmaster for a process. None: all worker processes are in use.
fn launch(database: &str, role: Role, argument: u64) -> Option<Handle> {
    let (kind, name) = match role {
        Role::Scheduler => ("xdb scheduler", format!("xdb scheduler of {database}")),
        Role::Runner(number) => ("xdb runner", format!("xdb runner {} of {database}", number + 1)),
    };
    worker::start(worker::describe(&name, kind, "xdb_scheduler_main"), argument)
}
