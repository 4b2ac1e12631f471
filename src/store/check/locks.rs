//! Whether the locks on attributes belong to calls that can have or want them.

use super::Check;
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::Snapshot;

impl Check<'_> {
    /// A lock belongs to a call that has a task. It is granted only under a lease, and parked only with its task.
    pub(super) fn locks(&mut self) -> Result<()> {
        const SELECT: &str = "SELECT l.seq, l.ticket, t.seq IS NULL, l.granted AND t.lease_until IS NULL, \
                l.parked AND t.lane <> 2, NOT l.parked AND t.lane = 2, \
                count(*) OVER (PARTITION BY l.seq, l.ticket) <> count(*) OVER (PARTITION BY l.seq) \
            FROM xdb.attribute_lock l \
            LEFT JOIN xdb.task t ON t.execution_id = l.execution_id AND t.seq = l.seq \
            WHERE l.execution_id = $1 ORDER BY l.seq, l.ticket, l.object";
        const PARKED: &str = "SELECT t.seq FROM xdb.task t WHERE t.execution_id = $1 AND t.lane = 2 \
            AND NOT EXISTS (SELECT FROM xdb.attribute_lock l WHERE l.execution_id = t.execution_id AND l.seq = t.seq) \
            ORDER BY t.seq";
        let params = [value(self.id)];
        let rows = self.spi.rows_with(Snapshot::Active, SELECT, &params, |row| {
            let flag = |place| Ok(row.at::<Option<bool>>(place)?.unwrap_or(false));
            Ok((row.at::<i32>(0)?, row.at::<i64>(1)?, flag(2)?, flag(3)?, flag(4)?, flag(5)?, flag(6)?))
        })?;
        for (seq, ticket, no_call, no_lease, task_not_parked, not_parked, many) in rows {
            let mut wrong = |is: bool, what: &str| {
                if is {
                    self.problem(format!("attribute_lock {{\"seq\": {seq}, \"ticket\": {ticket}}}: {what}"));
                }
            };
            wrong(no_call, "should not be there: the state is at no call");
            wrong(no_lease, "it is granted, and its call has no lease");
            wrong(task_not_parked, "it is parked, and its task is not");
            wrong(not_parked, "its task is parked, and it is not");
            wrong(many, "its call has locks with other tickets");
        }
        for seq in self.spi.rows_with(Snapshot::Active, PARKED, &params, |row| row.at::<i32>(0))? {
            self.problem(format!("task {{\"seq\": {seq}}}: it is parked, and waits for no lock"));
        }
        Ok(())
    }
}
