//! Slots: one for each scheduler and runner, found by database and role.
//!
//! Only the launcher allocates and frees slots. `life` joins the phase with the number of its start. So a start that
//! the launcher has given up can't take the place of a later start.
use super::{UnderLock, shared, with_lock};
use crate::pg::raw;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Databases that can have a scheduler at the same time.
pub const SCHEDULERS: usize = 64;
/// Runners have slots of their own, so they never take a scheduler's.
pub const SLOTS: usize = 2 * SCHEDULERS;
const ERROR_BYTES: usize = 256;

/// What a scheduler is woken for. The greater one includes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wakeup {
    /// There may be work. A dormant scheduler sleeps on.
    Work,
    /// Anything may have changed: registrations, a pause, its end.
    Anything,
}

// Wide because it is a piece of shared memory, whose words are written one by one by different processes.
#[repr(C)]
pub(super) struct SlotCell {
    /// Zero: the slot is free. Written last at allocation.
    database: AtomicU32,
    role: AtomicU32,
    /// Number of the start (upper bits) and phase (lowest byte). Written by the launcher, and by the process at its
    /// start and end.
    life: AtomicU64,
    /// Process id; zero without a process. Written by the process.
    pid: AtomicI32,
    /// Index of the process in the process array, plus one; zero without a process.
    procno: AtomicI32,
    /// Not zero: there was a wake-up. Written by any process, taken by the process of the slot.
    wake: AtomicU32,
    /// Not zero: only [`Wakeup::Anything`] wakes the scheduler. Written by the scheduler, read by processes that wake
    /// it.
    dormant: AtomicU32,
    /// Not zero: sessions have ended calls. Written by sessions, read by the scheduler.
    calls_over: AtomicU32,
    /// Not zero: runners of this scheduler have ended. Written by runners at exit, read by the scheduler.
    runners_ended: AtomicU32,
    /// Not zero: the process must leave. Written by the launcher, and by sessions that need the database.
    leave: AtomicU32,
    /// Why the process ended. Read by the launcher.
    exit_reason: AtomicU32,
    state: AtomicU32,
    /// Runners that the scheduler of this slot has asked for, one bit each. The launcher clears the bit of a runner
    /// that it starts.
    runners_wanted: AtomicU32,
    started_at: AtomicI64,
    exited_at: AtomicI64,
    epoch: AtomicI64,
    /// The owner whose functions the runner of this slot calls; zero: it calls none.
    functions_of: AtomicU32,
    /// The figures from here on are written by the process of the slot, and shown by `xdb.status()`.
    in_flight: AtomicI64,
    waiting_calls: AtomicI64,
    calls_total: AtomicI64,
    /// Thousandths of a call per second.
    call_rate: AtomicI64,
    next_turn_at: AtomicI64,
    /// The number of the reason, as `turn::Why` counts them.
    next_turn_why: AtomicU32,
    last_error_at: AtomicI64,
    /// Length and text.
    last_error: UnderLock<(u32, [u8; ERROR_BYTES])>,
}

/// Runners that a database may have at the same time.
pub const RUNNERS: usize = 16;

/// What an engine process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The process that claims calls and applies answers.
    Scheduler,
    /// A runner, counted from 0: it runs the steps of slow tables, and functions.
    Runner(u8),
}

impl Role {
    /// How many roles a database has.
    pub const COUNT: usize = RUNNERS + 1;

    /// From 0, without gaps.
    pub fn index(self) -> usize {
        match self {
            Role::Scheduler => 0,
            Role::Runner(number) => usize::from(number) + 1,
        }
    }

    pub fn from_index(index: usize) -> Role {
        index.checked_sub(1).map_or(Role::Scheduler, |number| Role::Runner(number as u8))
    }

    pub fn runners() -> impl Iterator<Item = Role> {
        (0..RUNNERS as u8).map(Role::Runner)
    }
}

/// Where a slot is between being allocated and being free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotPhase {
    /// No process, and none was asked for.
    Idle = 0,
    /// A process was asked for and has not taken the slot yet.
    Requested = 1,
    /// A process runs.
    Live = 2,
    /// The process has ended, and the launcher has not noticed yet.
    Exited = 3,
}

/// Why a process ended. Decides whether the launcher starts it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ExitReason {
    /// An error, or a change: start again.
    Restart = 0,
    /// The extension does not exist. The process is not started again until it is asked for.
    Dropped = 1,
    /// The process was asked to leave, or is a runner without work.
    Left = 2,
}

/// What the engine of a database is doing, as in `xdb.status()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineState {
    /// No process: not wanted, or not started yet.
    #[default]
    Stopped = 0,
    /// A process was started and prepares.
    Starting = 1,
    /// Turns are made.
    Running = 2,
    /// `xdb.pause_engine()`: answers are applied, nothing is claimed.
    Paused = 3,
    /// The last process failed; the next one starts after a backoff.
    BackingOff = 4,
    /// Turns are made, but no registration exists that could run.
    Unused = 5,
    /// The database is a copy, and its processes belong to another database.
    Copy = 6,
    /// This library doesn't work with the schema of the database.
    OtherSchema = 7,
}

impl EngineState {
    pub const ALL: [EngineState; 8] = [
        EngineState::Stopped,
        EngineState::Starting,
        EngineState::Running,
        EngineState::Paused,
        EngineState::BackingOff,
        EngineState::Unused,
        EngineState::Copy,
        EngineState::OtherSchema,
    ];

    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineState::Stopped => "stopped",
            EngineState::Starting => "starting",
            EngineState::Running | EngineState::Unused => "running",
            EngineState::Paused => "paused",
            EngineState::BackingOff => "backing off",
            EngineState::Copy => "waiting for adopt",
            EngineState::OtherSchema => "waiting for update",
        }
    }
}

/// A copy of a slot; without a slot, the default. Times are microseconds since the server's epoch; zero means never.
#[derive(Clone, Debug, Default)]
pub struct SlotStatus {
    pub pid: Option<i32>,
    pub state: EngineState,
    /// The epoch of the leases that the scheduler gives.
    pub epoch: i64,
    pub started_at: i64,
    /// Calls handed to the transport and not finished.
    pub in_flight: i64,
    /// Calls under way that wait for a connection.
    pub waiting_calls: i64,
    pub calls_per_second: f64,
    pub next_turn_at: i64,
    /// The number of the reason, as `turn::Why` counts them.
    pub next_turn_why: u32,
    pub last_error: Option<String>,
    pub last_error_at: i64,
}

/// The slot of this process, counted from 1; zero: none. Not a thread-local, because a signal handler reads it.
static MINE: AtomicU32 = AtomicU32::new(0);

/// A slot in shared memory. Copying it copies the reference, not the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u8);

impl Slot {
    fn cell(self) -> &'static SlotCell {
        // A Slot is only made from existing shared memory.
        match shared() {
            Some(shared) => &shared.slots[self.0 as usize],
            None => unreachable!("a slot without shared memory"),
        }
    }

    /// The slot with this index, which a process gets at its start.
    pub(crate) fn by_index(index: u8) -> Option<Slot> {
        (shared().is_some() && usize::from(index) < SLOTS).then_some(Slot(index))
    }

    /// Its index in shared memory. Slots of schedulers come first.
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All slots in use.
    pub fn all() -> impl Iterator<Item = Slot> {
        let count = if shared().is_some() { SLOTS as u8 } else { 0 };
        (0..count).map(Slot).filter(|s| s.cell().database.load(Ordering::SeqCst) != 0)
    }

    /// The slots of one database, all roles.
    pub fn of_database(database: pg_sys::Oid) -> impl Iterator<Item = Slot> {
        Slot::all().filter(move |s| s.database() == database)
    }

    /// The slot of one process.
    pub fn find(database: pg_sys::Oid, role: Role) -> Option<Slot> {
        Slot::of_database(database).find(|s| s.role() == role)
    }

    /// Allocates a slot for a process; `None` if all are in use. Launcher only.
    pub fn allocate(database: pg_sys::Oid, role: Role) -> Option<Slot> {
        let shared = shared()?;
        let mut places = if role == Role::Scheduler { 0..SCHEDULERS } else { SCHEDULERS..SLOTS };
        let index = places.find(|index| shared.slots[*index].database.load(Ordering::SeqCst) == 0)?;
        let cell = &shared.slots[index];
        for counter in [
            &cell.started_at,
            &cell.exited_at,
            &cell.epoch,
            &cell.in_flight,
            &cell.waiting_calls,
            &cell.calls_total,
            &cell.next_turn_at,
            &cell.last_error_at,
        ] {
            counter.store(0, Ordering::SeqCst);
        }
        for flag in [
            &cell.wake,
            &cell.leave,
            &cell.calls_over,
            &cell.runners_ended,
            &cell.exit_reason,
            &cell.state,
            &cell.runners_wanted,
        ] {
            flag.store(0, Ordering::SeqCst);
        }
        cell.role.store(role.index() as u32, Ordering::SeqCst);
        cell.database.store(database.to_u32(), Ordering::SeqCst);
        super::slow::clear(index);
        Some(Slot(index as u8))
    }

    /// Frees the slot. Launcher only, and only without a process.
    pub fn free(self) {
        self.set_phase(SlotPhase::Idle);
        self.cell().database.store(0, Ordering::SeqCst);
    }

    pub fn database(self) -> pg_sys::Oid {
        pg_sys::Oid::from(self.cell().database.load(Ordering::SeqCst))
    }

    pub fn role(self) -> Role {
        Role::from_index(self.cell().role.load(Ordering::SeqCst) as usize)
    }

    pub fn phase(self) -> SlotPhase {
        match self.cell().life.load(Ordering::SeqCst) & 0xff {
            1 => SlotPhase::Requested,
            2 => SlotPhase::Live,
            3 => SlotPhase::Exited,
            _ => SlotPhase::Idle,
        }
    }

    /// Launcher only, and never while a process has the slot.
    pub fn set_phase(self, phase: SlotPhase) {
        let start = self.cell().life.load(Ordering::SeqCst) >> 8;
        self.cell().life.store((start << 8) | phase as u64, Ordering::SeqCst);
    }

    /// Opens the slot for one new process. Returns the argument for that process.
    pub fn request_start(self) -> u64 {
        let cell = self.cell();
        // The argument has room for 32 bits of it.
        let start = ((cell.life.load(Ordering::SeqCst) >> 8) + 1) & 0xffff_ffff;
        cell.leave.store(0, Ordering::SeqCst);
        cell.exit_reason.store(ExitReason::Restart as u32, Ordering::SeqCst);
        cell.started_at.store(raw::now_micros(), Ordering::SeqCst);
        self.set_state(EngineState::Starting);
        cell.life.store((start << 8) | SlotPhase::Requested as u64, Ordering::SeqCst);
        (start << 8) | u64::from(self.0)
    }

    /// Closes the slot to the process that was asked for. False: that process has taken the slot already.
    pub fn give_up_start(self) -> bool {
        let life = &self.cell().life;
        let now = life.load(Ordering::SeqCst);
        now & 0xff == SlotPhase::Requested as u64
            && life
                .compare_exchange(now, (now & !0xff) | SlotPhase::Exited as u64, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    /// Whether the slot is in use.
    pub fn is_allocated(self) -> bool {
        self.cell().database.load(Ordering::SeqCst) != 0
    }

    /// Takes the slot for this process, if the start in `argument` is still wanted.
    ///
    /// A new process begins with its wake flag set, because requests to its predecessor are its work.
    pub fn claim(argument: u64) -> Option<Slot> {
        let index = (argument & 0xff) as usize;
        let cell = shared()?.slots.get(index)?;
        let start = argument >> 8;
        let procno = raw::my_procno()?;
        cell.life
            .compare_exchange(
                (start << 8) | SlotPhase::Requested as u64,
                (start << 8) | SlotPhase::Live as u64,
                Ordering::SeqCst,
                Ordering::SeqCst,
            )
            .ok()?;
        cell.in_flight.store(0, Ordering::SeqCst);
        cell.waiting_calls.store(0, Ordering::SeqCst);
        cell.functions_of.store(0, Ordering::SeqCst);
        cell.wake.store(1, Ordering::SeqCst);
        cell.dormant.store(0, Ordering::SeqCst);
        cell.started_at.store(raw::now_micros(), Ordering::SeqCst);
        cell.procno.store(procno + 1, Ordering::SeqCst);
        cell.pid.store(std::process::id() as i32, Ordering::SeqCst);
        MINE.store(index as u32 + 1, Ordering::SeqCst);
        Some(Slot(index as u8))
    }

    /// The slot that this process has claimed.
    pub fn mine() -> Option<Slot> {
        MINE.load(Ordering::SeqCst).checked_sub(1).map(|index| Slot(index as u8))
    }

    /// Marks the process of this slot as ended, and notifies the launcher. Called during exit: can't fail.
    pub fn vacate(self) {
        let cell = self.cell();
        // After the phase is `Exited`, the launcher may free the slot at any time.
        let (database, role) = (self.database(), self.role());
        cell.pid.store(0, Ordering::SeqCst);
        cell.procno.store(0, Ordering::SeqCst);
        cell.in_flight.store(0, Ordering::SeqCst);
        cell.waiting_calls.store(0, Ordering::SeqCst);
        cell.next_turn_at.store(0, Ordering::SeqCst);
        if role == Role::Scheduler {
            super::marks::clear(self);
            super::over::clear(database);
        }
        cell.exited_at.store(raw::now_micros(), Ordering::SeqCst);
        cell.state.store(EngineState::Stopped as u32, Ordering::SeqCst);
        let start = cell.life.load(Ordering::SeqCst) >> 8;
        cell.life.store((start << 8) | SlotPhase::Exited as u64, Ordering::SeqCst);
        super::wake_launcher();
        // The leases of a runner are void now.
        if role != Role::Scheduler
            && let Some(scheduler) = Slot::find(database, Role::Scheduler)
        {
            scheduler.cell().runners_ended.store(1, Ordering::SeqCst);
            scheduler.wake(Wakeup::Work);
        }
    }

    /// Why the process of this slot ended, or will have ended if it exits now.
    pub fn exit_reason(self) -> ExitReason {
        match self.cell().exit_reason.load(Ordering::SeqCst) {
            1 => ExitReason::Dropped,
            2 => ExitReason::Left,
            _ => ExitReason::Restart,
        }
    }

    /// Sets the reason for [`Slot::exit_reason`].
    pub fn set_exit_reason(self, reason: ExitReason) {
        self.cell().exit_reason.store(reason as u32, Ordering::SeqCst);
    }

    /// How long the last process ran, in microseconds.
    pub fn ran_for(self) -> i64 {
        let cell = self.cell();
        let ended = cell.exited_at.load(Ordering::SeqCst);
        (ended - cell.started_at.load(Ordering::SeqCst)).max(0)
    }

    /// When the last start was asked for, or its process began.
    pub fn started_at(self) -> i64 {
        self.cell().started_at.load(Ordering::SeqCst)
    }

    /// Wakes the process of this slot. Can't fail.
    pub fn wake(self, wakeup: Wakeup) {
        let cell = self.cell();
        let is_first = cell.wake.swap(1, Ordering::SeqCst) == 0;
        // The flag is set before `dormant` is read, and taken after `dormant` was reset. So a scheduler that is not
        // dormant any more sees the wake-up.
        let is_heard = is_first && cell.dormant.load(Ordering::SeqCst) == 0;
        if is_heard || wakeup == Wakeup::Anything {
            self.set_latch();
        }
    }

    /// Sets whether only [`Wakeup::Anything`] wakes the scheduler. Reset it *before* [`Slot::take_wake`].
    pub fn set_dormant(self, dormant: bool) {
        self.cell().dormant.store(u32::from(dormant), Ordering::SeqCst);
    }

    /// Whether there was a wake-up since the flag was taken. A wait for a lock may have consumed the latch.
    pub fn is_woken(self) -> bool {
        self.cell().wake.load(Ordering::SeqCst) != 0
    }

    /// Takes the wake flag: whether there was a wake-up since the last call. Call it *before* reading the tables.
    pub fn take_wake(self) -> bool {
        self.cell().wake.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether runners of this scheduler have ended since the last call.
    pub fn take_runners_ended(self) -> bool {
        self.cell().runners_ended.swap(0, Ordering::SeqCst) != 0
    }

    /// Notes for the scheduler of this slot that sessions have ended calls, whose locks are free for other calls. Call
    /// it after the commit, and before the scheduler is woken. Can't fail.
    pub fn note_calls_over(self) {
        self.cell().calls_over.store(1, Ordering::SeqCst);
    }

    /// Whether sessions have ended calls since the last call. Call it *before* reading the tables.
    pub fn take_calls_over(self) -> bool {
        self.cell().calls_over.swap(0, Ordering::SeqCst) != 0
    }

    fn set_latch(self) {
        let procno = self.cell().procno.load(Ordering::SeqCst);
        if procno > 0 {
            raw::set_latch_of(procno - 1);
        }
    }

    /// Asks the process to leave at the end of its turn.
    pub fn ask_to_leave(self) {
        self.cell().leave.store(1, Ordering::SeqCst);
        self.set_latch();
    }

    /// Whether the process was asked to leave: the engine was switched off, or a statement needs the database for
    /// itself. If it does not leave, it is terminated soon.
    pub fn asked_to_leave(self) -> bool {
        self.cell().leave.load(Ordering::SeqCst) != 0
    }

    /// Terminates the process now, whatever statement it runs.
    pub fn terminate(self) {
        if let Some(pid) = self.pid() {
            // SAFETY: plain system call. The pid was just read, and a process clears it before it ends.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }

    /// Process id, if a process runs.
    pub fn pid(self) -> Option<i32> {
        Some(self.cell().pid.load(Ordering::SeqCst)).filter(|pid| *pid != 0)
    }

    /// Asks the launcher for exactly these runners of this database, one bit each. On the scheduler's slot.
    pub fn want_runners(self, runners: u32) {
        let before = self.cell().runners_wanted.swap(runners, Ordering::SeqCst);
        if runners & !before != 0 {
            super::wake_launcher();
        }
    }

    /// Whether the scheduler of this slot has asked for this runner, and the launcher has not started it.
    pub fn wants_runner(self, number: u8) -> bool {
        self.cell().runners_wanted.load(Ordering::SeqCst) & (1 << number) != 0
    }

    /// The launcher has started this runner.
    pub fn runner_started(self, number: u8) {
        self.cell().runners_wanted.fetch_and(!(1 << number), Ordering::SeqCst);
    }

    pub fn state(self) -> EngineState {
        let number = self.cell().state.load(Ordering::SeqCst) as usize;
        EngineState::ALL.get(number).copied().unwrap_or(EngineState::Stopped)
    }

    /// Shows what the engine is doing.
    pub fn set_state(self, state: EngineState) {
        self.cell().state.store(state as u32, Ordering::SeqCst);
    }

    /// Shows the epoch of the leases that this scheduler gives.
    pub fn set_epoch(self, epoch: i64) {
        self.cell().epoch.store(epoch, Ordering::SeqCst);
    }

    /// The last epoch shown. Zero: no process has begun in this slot since the shared memory was created.
    pub fn epoch(self) -> i64 {
        self.cell().epoch.load(Ordering::SeqCst)
    }

    /// Whether this runner may call functions of an owner now. `most`: how many runners call functions. The last runner
    /// that calls none is reserved for owners whose functions no other runner calls. So functions of one owner that
    /// hang don't block other owners.
    pub fn may_call_functions_of(self, owner: u32, most: usize) -> bool {
        with_lock(false, || self.leaves_a_runner(owner, most))
    }

    /// Like [`Slot::may_call_functions_of`], and records that this runner calls them from now on. Under a lock, so two
    /// runners can't both be the last.
    pub fn begin_functions_of(self, owner: u32, most: usize) -> bool {
        with_lock(true, || {
            let may = self.leaves_a_runner(owner, most);
            if may {
                self.cell().functions_of.store(owner, Ordering::SeqCst);
            }
            may
        })
    }

    fn leaves_a_runner(self, owner: u32, most: usize) -> bool {
        self.owners_of_functions().count() + 1 < most || !self.owners_of_functions().any(|of| of == owner)
    }

    /// The owners of the functions that other runners of this database call, one for each runner.
    pub fn owners_of_functions(self) -> impl Iterator<Item = u32> {
        let others = Slot::of_database(self.database()).filter(move |slot| *slot != self && slot.pid().is_some());
        others.map(|slot| slot.cell().functions_of.load(Ordering::SeqCst)).filter(|owner| *owner != 0)
    }

    /// Records that this runner calls no functions any more.
    pub fn end_functions(self) {
        self.cell().functions_of.store(0, Ordering::SeqCst);
    }

    /// Shows how many of the calls under way wait for a connection.
    pub fn set_waiting_calls(self, calls: i64) {
        self.cell().waiting_calls.store(calls, Ordering::Relaxed);
    }

    /// Shows how many calls are under way.
    pub fn set_in_flight(self, calls: i64) {
        self.cell().in_flight.store(calls, Ordering::Relaxed);
    }

    /// The number shown by [`Slot::set_in_flight`].
    pub fn in_flight(self) -> usize {
        self.cell().in_flight.load(Ordering::Relaxed) as usize
    }

    /// Shows the recent rate of calls per second.
    pub fn set_calls_per_second(self, rate: f64) {
        self.cell().call_rate.store((rate * 1000.0) as i64, Ordering::SeqCst);
    }

    /// Shows when the next turn is due, and why.
    pub fn set_next_turn(self, wait: Duration, why: u32) {
        self.cell().next_turn_at.store(raw::now_micros() + wait.as_micros() as i64, Ordering::Relaxed);
        self.cell().next_turn_why.store(why, Ordering::Relaxed);
    }

    /// How many calls were handed to the transport.
    pub fn calls_total(self) -> i64 {
        self.cell().calls_total.load(Ordering::Relaxed)
    }

    /// Counts calls handed to the transport.
    pub fn add_calls(self, calls: i64) {
        self.cell().calls_total.fetch_add(calls, Ordering::Relaxed);
    }

    /// Shows the last error; cut at 256 bytes, between characters.
    pub fn record_error(self, message: &str) {
        let length = message.floor_char_boundary(ERROR_BYTES);
        let cell = self.cell();
        cell.last_error.change(|(stored, bytes)| {
            bytes[..length].copy_from_slice(&message.as_bytes()[..length]);
            *stored = length as u32;
        });
        cell.last_error_at.store(raw::now_micros(), Ordering::SeqCst);
    }

    /// A copy of the slot's values.
    pub fn status(self) -> SlotStatus {
        let cell = self.cell();
        let last_error_at = cell.last_error_at.load(Ordering::SeqCst);
        let (length, bytes) = cell.last_error.read();
        let text = bytes.get(..length as usize).unwrap_or_default();
        SlotStatus {
            pid: self.pid(),
            state: self.state(),
            epoch: cell.epoch.load(Ordering::SeqCst),
            started_at: self.started_at(),
            in_flight: cell.in_flight.load(Ordering::Relaxed),
            waiting_calls: cell.waiting_calls.load(Ordering::Relaxed),
            calls_per_second: cell.call_rate.load(Ordering::SeqCst) as f64 / 1000.0,
            next_turn_at: cell.next_turn_at.load(Ordering::Relaxed),
            next_turn_why: cell.next_turn_why.load(Ordering::Relaxed),
            last_error: (last_error_at != 0).then(|| String::from_utf8_lossy(text).into_owned()),
            last_error_at,
        }
    }
}
