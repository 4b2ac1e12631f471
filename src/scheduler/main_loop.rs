//! The loop of a scheduler or a runner: wait, collect answers, make a turn.

use super::duties::{Duties, is_running};
use crate::guc;
use crate::http::{FollowedSettings, Notifier, Reactor};
use crate::pg::catch::{LOCK_NOT_AVAILABLE, Result, debug, log_error};
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::pg::in_hand;
use crate::pg::latch::{WaitSet, Waited};
use crate::pg::process;
use crate::pg::session::{Begun, Session, report_activity};
use crate::pg::shmem::{EngineState, ExitReason, Role};
use crate::store::instance::Ownership;
use crate::store::versions::Mismatch;
use crate::store::{crashes, engine, execution};
use crate::transport::Reply;
use crate::turn::{Memory, Next, RETRY, take_turn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a scheduler that waits for an update looks by itself whether there was one.
const UPDATE_POLL: Duration = Duration::from_secs(1);

/// Runs processes until there is a reason to end.
// Long because the order of what a round consists of matters, and each of its ways out is an end of the process.
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
            Ok(Err(Begun::Busy)) => {}
            Ok(Err(_)) => return ExitReason::Restart,
            Err(error) => {
                session.slot.record_error(&error.to_string());
                // Somebody has locked the engine's row, and ends soon. After anything else a new process tries again, and the
                // launcher waits longer each time.
                if error.code != LOCK_NOT_AVAILABLE {
                    log_error("an engine process can't begin", &error);
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
        let progress = take_turn(&mut memory, session, &mut |requests, in_flight| {
            connections.make_room(&reactor, in_flight);
            reactor.submit(requests);
        });
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

/// Waits until there is a reason for a turn: somebody wakes this process, a worker has answered, or so much time has passed. Duties
/// that come due meanwhile are none: turns that they bring along would hide wake-ups that are lost. False: the process is not needed any more.
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
        // What others write while the engine is paused has no effect before it is resumed.
        session.slot.set_dormant(memory.is_paused_and_done());
        let is_woken = !memory.is_paused_and_done() && session.slot.is_woken();
        let waited = session.wait(wait_set, if is_woken { 0 } else { milliseconds });
        if is_woken || waited != Waited::TimedOut || next_duty >= left {
            return true;
        }
    }
}

/// Waits until the schema is another one. Nothing of it is touched.
fn wait_for_update(session: &mut Session, mismatch: &Mismatch) -> ExitReason {
    if session.role != Role::Scheduler {
        return ExitReason::Left;
    }
    pgrx::log!("xdb: nothing runs in this database: {mismatch}");
    session.slot.set_state(EngineState::OtherSchema);
    loop {
        if session.slot.asked_to_leave() {
            return ExitReason::Left;
        }
        session.slot.take_wake();
        match session.transaction(|_| Ok(())) {
            Ok(Ok(()) | Err(Begun::Ready | Begun::Busy)) => {}
            Ok(Err(Begun::Gone)) => return ExitReason::Gone,
            Ok(Err(Begun::Changed)) => return ExitReason::Restart,
            Err(error) => log_error("the scheduler can't see whether the extension was updated", &error),
        }
        // Who changes the extension wakes this up; what changes the catalog by hand doesn't.
        crate::pg::latch::wait_for_latch(UPDATE_POLL.as_millis() as i64);
    }
}

/// Begins an epoch, or says why there can't be one yet. With it comes whether the server has crashed, and this is the first scheduler
/// since.
fn begin(session: &mut Session, role: Role) -> Result<std::result::Result<(i64, bool), Begun>> {
    let (database, slot) = (session.database, session.slot);
    // Before it no runner has begun, and no file is that of a process that lives.
    let is_first = role == Role::Scheduler && slot.epoch() == 0;
    let in_hand = if is_first { in_hand::at_crash(database) } else { None };
    let begun = session.transaction(|spi| {
        execution::unmark_all(spi)?;
        let held = in_hand.as_ref().map_or(Ok(0), |calls| crashes::count(spi, calls))?;
        let epoch = engine::begin_epoch(spi, role)?;
        if role == Role::Scheduler {
            // Those of a runner that has died with the scheduler before this one.
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
                "xdb: calls held because three times the server crashed while one was made or its answer applied: {held}"
            );
        }
        (epoch, in_hand.is_some())
    }))
}

fn reactor() -> std::io::Result<(Reactor, Arc<Notifier>)> {
    let notifier = Arc::new(Notifier::new()?);
    Ok((Reactor::new(notifier.clone())?, notifier))
}

/// So many connections are kept in reserve, so that not each call changes the reservation.
const SPARE: usize = 16;

/// Descriptors for the connections of the reactor, reserved as they are needed.
#[derive(Default)]
struct Reserved {
    descriptors: Descriptors,
    connections: usize,
}

impl Reserved {
    /// Before so many calls are under way together.
    fn make_room(&mut self, reactor: &Reactor, in_flight: usize) {
        if in_flight > self.connections {
            self.connections = self.descriptors.reserve_connections(in_flight + SPARE);
            reactor.set_max_connections(self.connections);
        }
    }

    /// Gives back what is not needed any more, once the reactor has closed it; and tries again for those who wait.
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

/// Tells the reactor what has been reloaded.
fn follow_settings(session: &Session, reactor: &Reactor, followed: &mut FollowedSettings) {
    let (hosts, file) = (guc::text(&guc::ALLOWED_WORKER_HOSTS), guc::text(&guc::SSL_CA_FILE));
    let (loaded, max_response_bytes) = (process::configuration_read_at(), guc::max_response_bytes());
    let unusable = followed.follow(reactor, &hosts, &file, loaded, max_response_bytes);
    if let Some(why) = unusable.hosts {
        pgrx::log!("xdb: no worker is called, because xdb.allowed_worker_hosts is wrong: {why}");
    }
    if let Some(why) = unusable.authorities {
        pgrx::log!("xdb: no worker is called over TLS: {why} (\"{file}\")");
        session.slot.record_error(&why);
    }
}
