//! The scheduler's loop: wait, collect answers, make a turn.

use super::lifecycle::{Context, Exit, Turn};
use super::lock_queue::Object;
use super::maintenance::Maintenance;
use super::turn::{Progress, Scheduler};
use crate::guc;
use crate::http::{Finished, HostPolicy, Notifier, Pool, PoolConfig};
use crate::pg::catch::run_caught;
use crate::pg::catch::{Result, log_error};
use crate::pg::crash;
use crate::pg::latch::Waiter;
use crate::pg::shmem::{EngineState, Lane as SlotLane};
use crate::pg::spi;
use crate::store::claim::Lane;
use crate::store::instance::Standing;
use crate::store::versions::Mismatch;
use crate::store::{engine, load, locks};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait after a turn that could not be made.
const RETRY: Duration = Duration::from_millis(50);

/// A set-aside scheduler without work ends after this.
const ASIDE_PATIENCE: Duration = Duration::from_secs(5);

/// How often a scheduler that waits for an update looks by itself whether there was one.
const UPDATE_POLL: Duration = Duration::from_secs(1);

/// How often the rate that people see is brought up to date, until it is zero.
const RATE_EVERY: Duration = Duration::from_millis(500);

/// Runs processes until there is a reason to end.
pub fn run(context: &mut Context) -> Exit {
    let number = match context.lane {
        SlotLane::Main => 0,
        SlotLane::SetAside => 1,
    };
    if let Some(mismatch) = Mismatch::of(&context.extension_version) {
        return wait_for_update(context, &mismatch);
    }
    let (epoch, waited_for) = loop {
        if context.asked_to_leave() {
            return Exit::Left;
        }
        match begin(context, number) {
            Ok(Some(begun)) => break begun,
            Ok(None) => return Exit::Restart,
            Err(error) => log_error("the scheduler can't begin yet", &error),
        }
        crate::pg::latch::wait_for_latch(RETRY.as_millis() as i64);
    };
    context.slot.set_epoch(epoch);
    let (pool, notifier) = match pool() {
        Ok(made) => made,
        Err(error) => {
            pgrx::log!("xdb: the scheduler can't make its HTTP pool: {error}");
            return Exit::Restart;
        }
    };
    let waiter = Waiter::new(Some(notifier.raw_fd()));
    let mut scheduler = Scheduler::new(Lane { number, epoch }, guc::HTTP_THREADS.get() as usize);
    scheduler.watch.objects.extend(waited_for);
    if let Some(table) = context.slot.take_died_in() {
        scheduler.tables.died_in(table);
    }
    let mut settings = PoolSettings::default();
    let mut finished: Vec<Finished> = Vec::new();
    let mut last_work = Instant::now();
    let mut rate = Rate::new(context);
    let mut maintenance = Maintenance::new();
    loop {
        if context.asked_to_leave() {
            pool.shutdown(Duration::ZERO);
            return if number == 1 { Exit::Gone } else { Exit::Left };
        }
        settings.follow(&pool);
        context.slot.set_dormant(false);
        context.slot.take_wake().into_iter().for_each(|news| scheduler.looks.woken(news));
        notifier.clear();
        pool.drain(&mut finished);
        if scheduler.in_flight.len() > finished.len() {
            crash::point("call-answer");
        }
        for answer in finished.drain(..) {
            scheduler.answered(context, answer);
        }
        super::lifecycle::report_activity(Some(c"turn"));
        let progress = scheduler.turn(context, &mut |call| pool.submit(call));
        context.set_state(match scheduler.standing {
            Standing::Copy { .. } => EngineState::Copy,
            Standing::Unused => EngineState::Unused,
            Standing::Own if scheduler.paused => EngineState::Paused,
            Standing::Own => EngineState::Running,
        });
        scheduler.breakers.show(context);
        context.slot.set_in_flight(scheduler.in_flight.len() as i64);
        let timeout = match progress {
            Progress::Gone => return Exit::Gone,
            Progress::Changed => return Exit::Restart,
            Progress::More => {
                last_work = Instant::now();
                Duration::ZERO
            }
            Progress::Later => RETRY,
            Progress::Idle => scheduler.idle_for(),
        };
        if scheduler.in_flight.len() > 0 {
            last_work = Instant::now();
        }
        if number == 1 && last_work.elapsed() > ASIDE_PATIENCE {
            last_work = Instant::now();
            let left = in_transaction(context, |spi| {
                let left = engine::leave_lane(spi)?;
                crash::point("leave-lane");
                Ok(left)
            });
            if left.unwrap_or(false) {
                return Exit::Gone;
            }
        }
        if number == 0 && !scheduler.paused && progress != Progress::Later {
            maintenance.look(context);
        }
        let maintenance_due = maintenance.due_in().filter(|_| !scheduler.paused);
        let timeout = maintenance_due.map_or(timeout, |due| timeout.min(due));
        let timeout = if number == 0 { timeout.min(rate.show(context).unwrap_or(timeout)) } else { timeout };
        // Rounded up: a timer that is due in half a millisecond must not make the loop spin.
        let milliseconds = timeout.as_micros().div_ceil(1000) as i64;
        // What others write while the engine is paused has no effect before it is resumed.
        context.slot.set_dormant(scheduler.is_paused_and_done());
        context.wait(&waiter, milliseconds);
    }
}

/// Waits until the schema is another one. Nothing of it is touched.
fn wait_for_update(context: &mut Context, mismatch: &Mismatch) -> Exit {
    if context.lane == SlotLane::SetAside {
        return Exit::Gone;
    }
    pgrx::log!("xdb: {}; nothing runs in this database until then. {}", mismatch.reason(), mismatch.remedy());
    context.set_state(EngineState::OtherSchema);
    loop {
        if context.asked_to_leave() {
            return Exit::Left;
        }
        context.slot.take_wake();
        match run_caught(|| Ok(context.begin_turn())) {
            Ok(Turn::Ready) => context.abort_turn(),
            Ok(Turn::Busy) => {}
            Ok(Turn::Gone) => return Exit::Gone,
            Ok(Turn::Changed) => return Exit::Restart,
            Err(error) => {
                context.abort_turn();
                log_error("the scheduler can't see whether the extension was updated", &error);
            }
        }
        // Who changes the extension wakes this up; what changes the catalog by hand doesn't.
        crate::pg::latch::wait_for_latch(UPDATE_POLL.as_millis() as i64);
    }
}

/// Begins an epoch. Answers with it, and with the locks that somebody waits for. None when the extension has changed.
fn begin(context: &mut Context, lane: i16) -> Result<Option<(i64, Vec<Object>)>> {
    let turn = run_caught(|| Ok(context.begin_turn()));
    if turn.is_err() {
        context.abort_turn();
    }
    match turn? {
        Turn::Ready => {}
        Turn::Busy => return Err(crate::pg::catch::PgError::internal("the extension is locked")),
        Turn::Gone | Turn::Changed => return Ok(None),
    }
    let begun = run_caught(|| {
        let begun = spi::connect(|spi| {
            load::unmark_closing(spi, None)?;
            if lane == 0 && engine::has_tasks(spi, 1)? {
                context.request_set_aside();
            }
            let epoch = engine::begin_epoch(spi, lane)?;
            let mut waited_for = locks::sweep(spi, lane)?;
            if lane != 0 {
                locks::tell_released(spi, &std::mem::take(&mut waited_for))?;
            }
            crash::point("begin");
            Ok((epoch, waited_for))
        })?;
        context.commit_turn();
        Ok(Some(begun))
    });
    if begun.is_err() {
        context.abort_turn();
    }
    begun
}

/// Calls per second, of late.
struct Rate {
    since: Instant,
    /// Calls that had been made then.
    counted: i64,
    is_zero: bool,
}

impl Rate {
    fn new(context: &Context) -> Self {
        // What the scheduler before this one has shown is not true any more.
        Self { since: Instant::now(), counted: context.slot.calls_total(), is_zero: false }
    }

    /// Shows the rate if it is time. Answers with when it will be; None while there is nothing new to show.
    fn show(&mut self, context: &Context) -> Option<Duration> {
        let calls = context.slot.calls_total();
        let elapsed = self.since.elapsed();
        if elapsed >= RATE_EVERY && (calls > self.counted || !self.is_zero) {
            context.slot.set_calls_per_second((calls - self.counted) as f64 / elapsed.as_secs_f64());
            *self = Self { since: Instant::now(), counted: calls, is_zero: calls == self.counted };
        }
        (calls > self.counted || !self.is_zero).then(|| RATE_EVERY.saturating_sub(self.since.elapsed()))
    }
}

/// Runs `body` in a transaction of its own, outside a turn. None when that was not possible: it is tried again.
pub(super) fn in_transaction<T>(context: &mut Context, body: impl FnOnce(&spi::Spi) -> Result<T>) -> Option<T> {
    match run_caught(|| Ok(context.begin_turn())) {
        Ok(Turn::Ready) => {}
        Ok(_) => return None,
        Err(_) => {
            context.abort_turn();
            return None;
        }
    }
    let done = run_caught(|| {
        let value = spi::connect(body)?;
        context.commit_turn();
        Ok(value)
    });
    match done {
        Ok(value) => Some(value),
        Err(error) => {
            log_error("the scheduler could not look after itself", &error);
            context.abort_turn();
            None
        }
    }
}

fn pool() -> std::io::Result<(Pool, Arc<Notifier>)> {
    let notifier = Arc::new(Notifier::new()?);
    let config = PoolConfig {
        max_threads: guc::HTTP_THREADS.get() as usize,
        user_agent: format!("xdb/{}", env!("CARGO_PKG_VERSION")),
        max_response_bytes: guc::max_response_bytes(),
        policy: policy(),
    };
    Ok((Pool::new(config, notifier.clone())?, notifier))
}

/// The hosts that may be called. A setting that can't be read permits nothing.
fn policy() -> HostPolicy {
    let text = guc::text(&guc::ALLOWED_WORKER_HOSTS);
    HostPolicy::parse(&text).unwrap_or_else(|error| {
        pgrx::log!("xdb: no worker is called, because xdb.allowed_worker_hosts is wrong: {error}");
        HostPolicy::default()
    })
}

/// Settings of the pool that may be reloaded.
#[derive(Default)]
struct PoolSettings {
    hosts: Option<String>,
    max_response_bytes: usize,
}

impl PoolSettings {
    fn follow(&mut self, pool: &Pool) {
        let hosts = guc::text(&guc::ALLOWED_WORKER_HOSTS);
        if self.hosts.as_ref() != Some(&hosts) {
            pool.set_policy(policy());
            self.hosts = Some(hosts);
        }
        let max = guc::max_response_bytes();
        if self.max_response_bytes != max {
            pool.set_max_response_bytes(max);
            self.max_response_bytes = max;
        }
    }
}
