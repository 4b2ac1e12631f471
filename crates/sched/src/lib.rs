//! What a scheduler keeps in memory between its turns.
//!
//! Nothing here reads a clock, does I/O, starts a thread or knows that Postgres exists: every moment is handed in, so all of
//! it is tested without a server. And all of it may be lost at any moment: the tables hold everything.
//!
//! | module | answers |
//! |---|---|
//! | [`room`] | which calls are under way, and how many more may go out |
//! | [`breaker`] | whether a worker can be reached |
//! | [`lock_table`] | which calls may have the locks that they want |
//! | [`cursor`] | where a scan for due work begins |
//! | [`backoff`] | what is left alone for a while, because somebody else is at it |
//! | [`table_health`] | which tables of users are locked or slow |

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod cursor;
pub mod lock_table;
pub mod room;
pub mod table_health;
