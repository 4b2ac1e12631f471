//! Leases of calls that go out at once.

use xdb_engine::Timestamp;

/// A lease that a task gets as it is written, because its call goes out right after the commit.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub epoch: i64,
    pub number: i64,
    pub until: Timestamp,
}
