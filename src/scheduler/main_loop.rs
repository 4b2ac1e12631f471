//! The loop of a scheduler or a runner: wait, read answers, make a turn.
//!
//! Limitations: the loop has one thread. While a turn runs, answers wait in the reactor.

use super::duties::{Duties, is_running};
use crate::guc;
use crate::http::{FollowedSettings, Notifier, Reactor};
use crate::pg::catch::{LOCK_NOT_AVAILABLE, Result, debug, log_error};
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::pg::in_hand;
use crate::pg::latch::{WaitSet, Waited};
use crate::pg::process;
use crate::pg::session::{BeginOutcome, Session, report_activity};
use crate::pg::shmem::counters::{self, OfEngine};
use crate::pg::shmem::{EngineState, ExitReason, Role};
use crate::store::instance::Ownership;
use crate::store::versions::Mismatch;
use crate::store::{crashes, engine, execution};
use crate::transport::Reply;
use crate::turn::{Memory, Next, RETRY, take_turn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a scheduler that waits for an update of the schema checks for it.
const UPDATE_POLL: Duration = Duration::from_secs(1);

/// Runs turns until there is a reason to end, and returns the reason.
// Long because the order within a round matters, and each way out ends the process.
pub fn run(session: &mut Session) -> ExitReason {
    let role = session.role;
    if let Some(mismatch) = Mismatch::of(&session.extension_version) {
        return wait_for_update(session, &mismatch);
    }
    let (epoch, after_crash) = loop {
        if session.slot.asked_to_leave() {
            return ExitReason::Left;
        }
        match begin(session, role) {
            Ok(Ok(begun)) => break begun,
            Ok(Err(BeginOutcome::Busy)) => {}
            Ok(Err(_)) => return ExitReason::Restart,
            Err(error) => {
                session.slot.record_error(&error.to_string());
                // If the engine's row is locked, the lock is released soon. After any other error a new process tries
                // again, and the launcher waits longer each time.
                if error.code != LOCK_NOT_AVAILABLE {
                    log_error("an engine process can't start", &error);
                    return ExitReason::Restart;
                }
            }
        }
        crate::pg::latch::wait_for_latch(RETRY.as_millis() as i64);
    };
    session.slot.set_epoch(epoch);
    let (reactor, notifier) = match reactor() {
        Ok(made) => made,
        Err(error) => {
            pgrx::log!("xdb: an engine process can't call workers: {error}");
            session.slot.record_error(&format!("an engine process can't call workers: {error}"));
            return ExitReason::Restart;
        }
    };
    let wait_set = WaitSet::new(Some(notifier.raw_fd()));
    let mut memory = Memory::new(role, epoch, after_crash);
    let mut followed = FollowedSettings::default();
    let mut connections = Reserved::default();
    let mut finished: Vec<Reply> = Vec::new();
    let mut duties = Duties::of(session);
    loop {
        if session.slot.asked_to_leave() {
            return ExitReason::Left;
        }
        follow_settings(session, &reactor, &mut followed);
        session.slot.set_dormant(false);
        if session.slot.take_wake() {
            memory.woken();
        }
        duties.before_turn(session);
        notifier.clear();
        reactor.drain(&mut finished);
        if memory.in_flight() > finished.len() {
            crash::point("call-answer");
        }
        for answer in finished.drain(..) {
            memory.answered(session, answer);
        }
        report_activity(Some(c"turn"));
        let began = Instant::now();
        let progress = take_turn(&mut memory, session, &mut |requests, in_flight| {
            connections.make_room(&reactor, in_flight);
            reactor.submit(requests);
        });
        counters::count_time(session.database, OfEngine::Turns, began.elapsed());
        reactor.cancel(memory.take_useless());
        connections.follow(session, &reactor, memory.in_flight());
        session.slot.set_state(match memory.ownership() {
            Ownership::Copy { .. } => EngineState::Copy,
            Ownership::Unused => EngineState::Unused,
            Ownership::Own if memory.is_paused() => EngineState::Paused,
            Ownership::Own => EngineState::Running,
        });
        memory.show(session);
        let next = match progress {
            Ok(next) => next,
            Err(reason) => return reason,
        };
        session.slot.set_next_turn(next.wait(), next.why as u32);
        debug(|| format!("the next turn is due in {:?}: {}", next.wait(), next.why));
        if !rest(session, &memory, &mut duties, &wait_set, next) {
            return ExitReason::Left;
        }
    }
}

/// Waits until there is a reason for a turn: the process is woken, a worker has answered, or the next turn is due. Due
/// duties are no reason: their turns would hide lost wake-ups. Returns false if the process is not needed any more.
fn rest(session: &mut Session, memory: &Memory, duties: &mut Duties, wait_set: &WaitSet, next: Next) -> bool {
    let until = Instant::now() + next.wait();
    loop {
        let Some(next_duty) = duties.after_turn(session, memory, next) else { return false };
        if session.slot.asked_to_leave() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now()).min(duties.want_turn_in());
        // Rounded up: a timer that is due in half a millisecond must not make the loop spin.
        let milliseconds = left.min(next_duty).as_micros().div_ceil(1000) as i64;
        // In a pause, what sessions write has no effect before the engine is resumed.
        session.slot.set_dormant(memory.is_paused_and_done());
        let is_woken = !memory.is_paused_and_done() && session.slot.is_woken();
        let waited = session.wait(wait_set, if is_woken { 0 } else { milliseconds });
        if is_woken || waited != Waited::TimedOut || next_duty >= left {
            return true;
        }
    }
}

/// Waits until the schema has the expected version. Touches nothing of it until then.
fn wait_for_update(session: &mut Session, mismatch: &Mismatch) -> ExitReason {
    if session.role != Role::Scheduler {
        return ExitReason::Left;
    }
    pgrx::log!("xdb: no process runs in this database: {mismatch}");
    session.slot.set_state(EngineState::OtherSchema);
    loop {
        if session.slot.asked_to_leave() {
            return ExitReason::Left;
        }
        session.slot.take_wake();
        match session.transaction(|_| Ok(())) {
            Ok(Ok(()) | Err(BeginOutcome::Ready | BeginOutcome::Busy)) => {}
            Ok(Err(BeginOutcome::Dropped)) => return ExitReason::Dropped,
            Ok(Err(BeginOutcome::Changed)) => return ExitReason::Restart,
            Err(error) => log_error("the scheduler can't see whether the extension was updated", &error),
        }
        // A session that updates the extension wakes this process. A manual change of the catalog does not.
        crate::pg::latch::wait_for_latch(UPDATE_POLL.as_millis() as i64);
    }
}

/// Begins an epoch, or returns why there can't be one yet. The flag says whether the server has crashed and this is the
/// first scheduler since.
fn begin(session: &mut Session, role: Role) -> Result<std::result::Result<(i64, bool), BeginOutcome>> {
    let (database, slot) = (session.database, session.slot);
    // No runner has begun before the first scheduler, so no file belongs to a live process.
    let is_first = role == Role::Scheduler && slot.epoch() == 0;
    let in_hand = if is_first { in_hand::at_crash(database) } else { None };
    let begun = session.transaction(|spi| {
        execution::unmark_all(spi)?;
        let held = in_hand.as_ref().map_or(Ok(0), |calls| crashes::count(spi, calls))?;
        let epoch = engine::begin_epoch(spi, role)?;
        if role == Role::Scheduler {
            // Includes runners that died together with the previous scheduler.
            engine::retire_runners(spi, |runner| !is_running(database, runner))?;
        }
        crash::point("begin");
        Ok((epoch, held))
    })?;
    Ok(begun.map(|(epoch, held)| {
        if is_first {
            in_hand::forget(database);
        }
        in_hand::begin(database, role);
        if held > 0 {
            pgrx::log!(
                "xdb: calls held after three crashes of the server while they were made or their answers applied: {held}"
            );
        }
        (epoch, in_hand.is_some())
    }))
}

fn reactor() -> std::io::Result<(Reactor, Arc<Notifier>)> {
    let notifier = Arc::new(Notifier::new()?);
    Ok((Reactor::new(notifier.clone())?, notifier))
}

/// This many connections are reserved beyond the ones in use, so that the reservation changes rarely.
const SPARE: usize = 16;

/// Descriptors for the connections of the reactor, reserved as needed.
#[derive(Default)]
struct Reserved {
    descriptors: Descriptors,
    connections: usize,
}

impl Reserved {
    /// Reserves connections before the number of calls under way grows to `in_flight`.
    fn make_room(&mut self, reactor: &Reactor, in_flight: usize) {
        if in_flight > self.connections {
            self.connections = self.descriptors.reserve_connections(in_flight + SPARE);
            reactor.set_max_connections(self.connections);
        }
    }

    /// Releases connections that are not needed, once the reactor has closed them. Tries again to reserve some while
    /// calls wait.
    fn follow(&mut self, session: &Session, reactor: &Reactor, in_flight: usize) {
        let now = reactor.connections();
        session.slot.set_waiting_calls(now.waiting as i64);
        if now.waiting > 0 {
            self.make_room(reactor, in_flight);
        }
        let needed = in_flight.max(now.open) + SPARE;
        if needed * 2 < self.connections {
            self.connections = needed;
            reactor.set_max_connections(needed);
            self.descriptors.release_connections(needed);
        }
    }
}

/// Passes reloaded settings to the reactor.
fn follow_settings(session: &Session, reactor: &Reactor, followed: &mut FollowedSettings) {
    let (hosts, file) = (guc::text(&guc::ALLOWED_WORKER_HOSTS), guc::text(&guc::SSL_CA_FILE));
    let (loaded, max_response_bytes) = (process::configuration_read_at(), guc::max_response_bytes());
    let unusable = followed.follow(reactor, &hosts, &file, loaded, max_response_bytes);
    if let Some(why) = unusable.hosts {
        pgrx::log!("xdb: no worker is called, because xdb.allowed_worker_hosts can't be read: {why}");
    }
    if let Some(why) = unusable.authorities {
        pgrx::log!("xdb: no worker is called over TLS: {why} (\"{file}\")");
        session.slot.record_error(&why);
    }
}
