//! A client's session that survives every fault, and knows which results it does not know.

use std::time::{Duration, Instant};

use xdb_cluster_tests::codes;
use xdb_cluster_tests::db::{Db, SqlError};

use crate::world::{Known, Pids, World};

/// The result of an attempt.
pub enum Attempt<T> {
    Done(T),
    /// The server refused it, and nothing was done.
    Refused(SqlError),
    /// The connection was lost before the answer came.
    Unknown,
}

/// A connection that is made again when it is lost.
pub struct Session<'a> {
    world: &'a World,
    role: &'static str,
    db: Option<Db>,
    pid: i32,
    runs_since: i64,
    statement_timeout: u64,
    was_lost: bool,
}

/// The SQLSTATE of a quota's refusal.
const OVER_QUOTA: &str = codes::OVER_QUOTA;

/// An operation whose result is unknown after this time will never succeed.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

impl<'a> Session<'a> {
    pub fn new(world: &'a World, role: &'static str) -> Session<'a> {
        Session { world, role, db: None, pid: 0, runs_since: 0, statement_timeout: 0, was_lost: false }
    }

    /// The connection. None: none could be made within some seconds.
    fn db(&mut self) -> Option<&mut Db> {
        if self.db.is_none() {
            let within = Duration::from_secs(5);
            let mut db = self.world.cluster().try_connect(self.world.database(), self.role, within).ok()?;
            self.pid = db.try_one("SELECT pg_backend_pid()").ok()?;
            self.runs_since = runs_since(&mut db).ok()?;
            self.statement_timeout = 0;
            self.db = Some(db);
        }
        let wanted = self.world.mischief.statement_timeout();
        if wanted != self.statement_timeout {
            let value = if wanted == 0 { "90s".to_owned() } else { format!("{wanted}ms") };
            // Too short a time for this very statement is the client's bad luck: it comes with the next one.
            if self.db.as_mut()?.try_run(&format!("SET statement_timeout = '{value}'")).is_ok() {
                self.statement_timeout = wanted;
            }
        }
        self.db.as_mut()
    }

    /// Does something with the connection, once.
    pub fn attempt<T>(&mut self, work: impl FnOnce(&mut Db) -> Result<T, SqlError>) -> Attempt<T> {
        let Some(db) = self.db() else {
            return Attempt::Refused(SqlError::new("57P03", "no connection"));
        };
        match work(db) {
            Ok(value) => Attempt::Done(value),
            Err(error) if error.is_lost() => {
                self.db = None;
                Attempt::Unknown
            }
            Err(error) => {
                // A transaction that has failed is open still.
                if db.try_run("ROLLBACK").is_err() {
                    self.db = None;
                }
                Attempt::Refused(error)
            }
        }
    }

    /// Repeats an operation that may be repeated, until its result is known: `Ok`, or the refusal.
    pub fn settle<T>(
        &mut self,
        what: &str,
        mut work: impl FnMut(&mut Db) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        self.was_lost = false;
        loop {
            let problem = match self.attempt(&mut work) {
                Attempt::Done(value) => return Ok(value),
                Attempt::Refused(error) if !passes(&error) => return Err(error),
                Attempt::Refused(error) => {
                    if error.code == OVER_QUOTA {
                        self.world.count_over_quota();
                    }
                    format!("{error:?}")
                }
                Attempt::Unknown => {
                    self.was_lost = true;
                    "the connection was lost".to_owned()
                }
            };
            self.world.count_repeat();
            if Instant::now() > deadline {
                self.world.record.complain(format!("{what} could not be settled in {SETTLED_WITHIN:?}: {problem}"));
                return Err(SqlError::new("unsettled", &problem));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether an attempt of the last settled operation had an unknown outcome.
    pub fn was_lost(&self) -> bool {
        self.was_lost
    }

    /// Repeats statements of one message until their result is known. Their own keys make that safe.
    pub fn settle_run(&mut self, what: &str, sql: &str) -> Result<(), SqlError> {
        self.settle(what, |db| db.try_run(sql))
    }

    /// Runs `work` while the session is listed as one in an RPC.
    pub fn in_rpc<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let known = self.known_in(&self.world.in_rpc);
        let value = work(self);
        drop(known);
        value
    }

    /// Lists the session's current backend among these until the result is dropped. A new connection is not listed.
    pub fn known_in<'p>(&mut self, pids: &'p Pids) -> Option<Known<'p>> {
        self.db().is_some().then(|| pids.know(self.pid))
    }

    /// Since when the server has run without a crash, by [`crate::schema::RUNS_SINCE`]. Read at the last connection.
    pub fn runs_since(&self) -> i64 {
        self.runs_since
    }

    /// Closes the connection without ending the session.
    pub fn hang_up(&mut self) {
        self.db = None;
    }
}

/// Since when the server has run without a crash, by [`crate::schema::RUNS_SINCE`]. An error if the postmaster was
/// killed: then the checkpointer ends before the sessions do.
pub fn runs_since(db: &mut Db) -> Result<i64, SqlError> {
    db.try_text("SELECT public.runs_since()")?
        .and_then(|since| since.parse().ok())
        .ok_or_else(|| SqlError::new("57P01", "the server is about to end"))
}

/// Whether a repeat may succeed after this error: conflicts, timeouts, a worker that failed, a full server, a used-up
/// quota, a pause.
pub fn passes(error: &SqlError) -> bool {
    matches!(&*error.code, "40001" | "40P01" | "55P03" | "57014" | "57P03" | "XD010" | OVER_QUOTA | codes::PAUSED)
        || error.code.starts_with("53")
        || error.code.starts_with("58")
}
