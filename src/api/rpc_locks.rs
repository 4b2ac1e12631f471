//! How an RPC stands in line with states for what it locks.
//!
//! Among themselves, RPCs wait with the server's own locks. To states an RPC shows itself in shared memory; once the turns
//! are over that may have missed it there, it waits for the states that came before it. Correctness needs none of this: an
//! RPC locks users' rows and the process itself, and versions tell a state what has changed.

use super::Caller;
use crate::clock;
use crate::error;
use crate::guc;
use crate::pg::catch::{LOCK_NOT_AVAILABLE, Result};
use crate::pg::latch::wait_for_latch;
use crate::pg::lock::{self, Strength};
use crate::pg::shmem::{EngineState, Role, Slot, caller as places};
use crate::pg::{identity, spi, wake};
use crate::store::load::Meta;
use crate::store::locks::{self, KeyTypes, Wants};
use pgrx::pg_sys;
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, Loading};
use xdb_sched::lock_table::{Mode, Object};

/// Longest wait for states that came before and have nothing yet. A ring in which they wait for callers who wait for this
/// RPC has nobody else to end it.
const COURTESY: Duration = Duration::from_secs(1);

/// An RPC on its way to its locks.
pub(super) struct Line<'a> {
    pub rpc_name: &'a str,
    pub deadline: Instant,
}

/// Places that are given back when the wait at them ends otherwise than well.
struct Taken(Vec<usize>);

impl Drop for Taken {
    fn drop(&mut self) {
        places::give_back(&self.0);
    }
}

impl Line<'_> {
    /// Waits until nobody else has what a call with these loading policies locks. It is had until the transaction ends.
    pub fn stand(&self, caller: Caller, meta: &Meta, id: ExecutionId, global: &Loading, local: &Loading) -> Result<()> {
        let (wants, ticket) = caller.on_system_tables(|_| {
            spi::connect(|spi| {
                let types = KeyTypes::read(spi, meta.mapping.iter())?;
                let wants = locks::wants(meta, id, global, local, &types);
                // Of this ticket all objects are asked for, in their order.
                Ok((wants, locks::tickets(spi, 1)?.pop().unwrap_or(i64::MAX)))
            })
        })?;
        if wants.is_empty() {
            return Ok(());
        }
        let mine = places::mine();
        let has = |object: &Object, mode: Mode| {
            let strong_enough = |number: u32| Mode::ALL.get(number as usize).is_some_and(|has| has.covers(mode));
            mine.iter().any(|place| place.object == *object && strong_enough(place.mode))
        };
        let missing: Vec<_> = wants.objects.iter().copied().filter(|(object, mode)| !has(object, *mode)).collect();
        // All of them: a savepoint that was rolled back has taken some with it.
        self.before_other_rpcs(&wants)?;
        if missing.is_empty() {
            return Ok(());
        }
        wake::leave_line_at_end();
        let mut taken = Taken(Vec::with_capacity(missing.len()));
        taken.0.extend(missing.iter().map_while(|(object, mode)| places::take(object, *mode as u32, ticket)));
        if taken.0.len() == missing.len() {
            // Who has locks already waits for nobody who has none.
            let ticket = Some(ticket).filter(|_| mine.is_empty());
            self.before_states(caller, &missing, &taken.0, ticket)?;
        }
        places::settle(&std::mem::take(&mut taken.0));
        Ok(())
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn before_other_rpcs(&self, wants: &Wants) -> Result<()> {
        for (object, mode) in &wants.objects {
            let strength = match mode {
                Mode::IntentionShared => Strength::IntentionShared,
                Mode::IntentionExclusive => Strength::IntentionExclusive,
                Mode::Shared => Strength::Shared,
                Mode::Exclusive => Strength::Exclusive,
            };
            let left = self.left();
            let acquired = identity::with_lock_timeout(left, || lock::acquire(locks::lock_key(object), strength));
            acquired.map_err(|error| match error.code {
                LOCK_NOT_AVAILABLE if self.left().is_zero() => error::locks_not_granted(self.rpc_name, &wants.names()),
                _ => error,
            })?;
        }
        Ok(())
    }

    fn before_states(
        &self,
        caller: Caller,
        missing: &[(Object, Mode)],
        taken: &[usize],
        ticket: Option<i64>,
    ) -> Result<()> {
        let patient_until = Instant::now() + COURTESY;
        loop {
            self.wait_for_turns(missing.len())?;
            let ticket = ticket.filter(|_| Instant::now() < patient_until);
            let before = match self.in_the_way(caller, missing, ticket)? {
                Some(name) => Some(name),
                None => {
                    // A turn that saw this RPC wait may have let somebody in before it.
                    places::confirm(taken);
                    self.wait_for_turns(missing.len())?;
                    self.in_the_way(caller, missing, None)?
                }
            };
            let Some(name) = before else { return Ok(()) };
            places::wait_at(taken);
            if self.left().is_zero() {
                return Err(error::locks_not_granted(self.rpc_name, &name));
            }
            let floor = Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64);
            let patience = patient_until.saturating_duration_since(Instant::now());
            let patience = if patience.is_zero() { floor } else { patience };
            wait_for_latch(self.left().min(floor).min(patience).as_millis() as i64 + 1);
        }
    }

    /// Waits for the end of the turns that are being made now: they may have begun before this RPC showed itself.
    fn wait_for_turns(&self, objects: usize) -> Result<()> {
        let open: Vec<_> = slots().filter_map(|slot| Some((slot, slot.open_turn()?))).collect();
        for (slot, turn) in open {
            while slot.pid().is_some() && slot.open_turn() == Some(turn) {
                if self.left().is_zero() {
                    let what = format!("a turn of the engine, to ask for {objects} locks");
                    return Err(error::locks_not_granted(self.rpc_name, &what));
                }
                let floor = Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64);
                wait_for_latch(self.left().min(floor).as_millis() as i64 + 1);
            }
        }
        Ok(())
    }

    /// What a state has, or has waited for since before `ticket`. States of an engine that does not run have nothing, and
    /// while it is paused they get nothing.
    fn in_the_way(&self, caller: Caller, missing: &[(Object, Mode)], ticket: Option<i64>) -> Result<Option<String>> {
        let epochs: Vec<_> = slots().filter_map(Slot::running_epoch).collect();
        let grants = slots()
            .any(|slot| slot.role() == Role::Scheduler && slot.pid().is_some() && slot.state() == EngineState::Running);
        let ticket = ticket.filter(|_| grants);
        caller.on_system_tables(|_| {
            spi::connect(|spi| locks::in_the_callers_way(spi, missing, ticket, &epochs, clock::real()))
        })
    }
}

fn slots() -> impl Iterator<Item = Slot> {
    // SAFETY: set once at the start of the process.
    Slot::of_database(unsafe { pg_sys::MyDatabaseId })
}
