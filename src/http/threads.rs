//! Threads inside a server process: started as needed, deaf to signals, outliving panics.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{any::Any, io, mem, ptr, thread};

use super::{lock, wait_until};

const STACK: usize = 256 * 1024;
/// A thread without work ends after this time, so that a peak does not hold its memory for ever.
const IDLE: Duration = Duration::from_secs(60);

/// What the threads do.
pub trait Work: Send + Sync + 'static {
    /// One piece of it.
    type Job: Send + 'static;

    /// Does one job. It may panic.
    fn run(&self, job: &mut Self::Job);

    /// Reports a job that panicked with `message`.
    fn panicked(&self, job: Self::Job, message: String);
}

/// A bounded set of threads that take jobs from one queue.
///
/// All signals are blocked in every thread, and in what libraries start from one. The server's latches
/// are signals: a thread that received one instead of the main thread would swallow a wake-up.
pub struct Threads<W: Work> {
    shared: Arc<Shared<W>>,
}

struct Shared<W: Work> {
    name: &'static str,
    max: usize,
    work: W,
    state: Mutex<State<W::Job>>,
    has_work: Condvar,
    ended: Condvar,
}

struct State<J> {
    queue: VecDeque<J>,
    live: usize,
    /// Started, but not yet looking at the queue.
    starting: usize,
    idle: usize,
    busy: usize,
    stopped: bool,
}

impl<W: Work> Threads<W> {
    /// At most `max` threads (at least one), none of which is started before there is work for it.
    /// `name` is what tools show; the system keeps 15 bytes of it.
    pub fn new(name: &'static str, max: usize, work: W) -> Self {
        let state = State { queue: VecDeque::new(), live: 0, starting: 0, idle: 0, busy: 0, stopped: false };
        Threads {
            shared: Arc::new(Shared {
                name,
                max: max.max(1),
                work,
                state: Mutex::new(state),
                has_work: Condvar::new(),
                ended: Condvar::new(),
            }),
        }
    }

    /// Hands a job to an idle thread, to a new one, or to the queue. Fails, and drops the job, when it
    /// would wait for ever: after [`stop`](Threads::stop), or when not even one thread can be started.
    pub fn submit(&self, job: W::Job) -> io::Result<()> {
        let mut state = lock(&self.shared.state);
        if state.stopped {
            return Err(io::Error::other("the threads were stopped"));
        }
        state.queue.push_back(job);
        if state.queue.len() <= state.idle + state.starting || state.live >= self.shared.max {
            drop(state);
            self.shared.has_work.notify_one();
            return Ok(());
        }
        state.live += 1;
        state.starting += 1;
        // Still under the lock: a thread that fails to start must not have been counted on by others.
        if let Err(error) = self.start_one() {
            state.live -= 1;
            state.starting -= 1;
            if state.live == 0 {
                // Nobody else's: threads don't end while there are jobs.
                state.queue.pop_back();
                return Err(error);
            }
        }
        Ok(())
    }

    fn start_one(&self) -> io::Result<()> {
        let shared = self.shared.clone();
        let _blocked = BlockedSignals::block()?;
        thread::Builder::new()
            .name(self.shared.name.to_owned())
            .stack_size(STACK)
            .spawn(move || shared.serve())
            .map(drop)
    }

    /// How many more jobs would be taken up at once.
    pub fn free(&self) -> usize {
        let state = lock(&self.shared.state);
        self.shared.max.saturating_sub(state.busy + state.queue.len())
    }

    /// Takes back all jobs that no thread has taken yet.
    pub fn take_queue(&self) -> VecDeque<W::Job> {
        mem::take(&mut lock(&self.shared.state).queue)
    }

    /// Refuses further jobs, drops the queued ones, and lets every thread end after its job.
    pub fn stop(&self) {
        let dropped = {
            let mut state = lock(&self.shared.state);
            state.stopped = true;
            mem::take(&mut state.queue)
        };
        drop(dropped);
        self.shared.has_work.notify_all();
    }

    /// Waits until no thread is left; false when some are at `deadline`.
    pub fn wait_ended(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.shared.state);
        while state.live > 0 {
            match wait_until(&self.shared.ended, state, deadline) {
                Some(guard) => state = guard,
                None => return false,
            }
        }
        true
    }
}

impl<W: Work> Drop for Threads<W> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<W: Work> Shared<W> {
    fn serve(&self) {
        let mut first = true;
        while let Some(mut job) = self.next(mem::take(&mut first)) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work.run(&mut job))) {
                let message = panic_message(panic.as_ref());
                let report = AssertUnwindSafe(|| self.work.panicked(job, message));
                if catch_unwind(report).is_err() {
                    eprintln!("{}: the report of a panic panicked; its job is lost", self.name);
                }
            }
            lock(&self.state).busy -= 1;
        }
        self.ended.notify_all();
    }

    /// The next job, counted as busy; `None` is the end of the thread, counted as gone.
    fn next(&self, first: bool) -> Option<W::Job> {
        let mut state = lock(&self.state);
        if first {
            state.starting -= 1;
        }
        loop {
            if state.stopped {
                break;
            }
            if let Some(job) = state.queue.pop_front() {
                state.busy += 1;
                return Some(job);
            }
            state.idle += 1;
            let (guard, waited) = self.has_work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.live -= 1;
        None
    }
}

/// What a panic says.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// Blocks all signals in this thread until it is dropped; a thread started meanwhile inherits that.
pub struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    pub fn block() -> io::Result<Self> {
        // SAFETY: a sigset_t is plain bytes, and both calls write only into the sets given.
        let (result, before) = unsafe {
            let mut all: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&mut all);
            let result = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            (result, before)
        };
        match result {
            0 => Ok(BlockedSignals { before }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the system gave. The call fails only for an unknown "how".
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
