//! Finds out from a row's `xmax` whether another transaction has locked the row.

use pgrx::pg_sys;

/// Whether another transaction has locked a row `FOR UPDATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateLocker {
    Absent,
    /// A transaction that has ended.
    Ended,
    Open,
}

/// The `FOR UPDATE` locks of other transactions on a row. This transaction has locked the row `FOR KEY SHARE` before it
/// read `xmax`.
///
/// According to the manual, two transactions can't hold these locks together. Hazard: one transaction may raise its
/// lock from `FOR NO KEY UPDATE` while another is about to lock the row `FOR KEY SHARE`. Then both may succeed: after
/// waiting for the weaker lock, `heap_lock_tuple` checks again only for updates. (Seen with 15.20: two sessions that do
/// nothing else get there ten times a second.)
pub fn update_locker(xmax: u32) -> UpdateLocker {
    let xmax = pg_sys::TransactionId::from(xmax);
    let mut members: *mut pg_sys::MultiXactMember = std::ptr::null_mut();
    // SAFETY: with several lockers, `xmax` is a multixact that lists them; with one, it is this transaction's own id.
    // The server allocates the members, as many as it says.
    unsafe {
        if pg_sys::TransactionIdIsCurrentTransactionId(xmax) {
            return UpdateLocker::Absent;
        }
        let count = pg_sys::GetMultiXactIdMembers(xmax, &raw mut members, false, false);
        if count <= 0 {
            return UpdateLocker::Absent;
        }
        let all = std::slice::from_raw_parts(members, count as usize);
        let others = all.iter().filter(|member| {
            member.status == pg_sys::MultiXactStatus::MultiXactStatusForUpdate
                && !pg_sys::TransactionIdIsCurrentTransactionId(member.xid)
        });
        let of = |member: &pg_sys::MultiXactMember| match pg_sys::TransactionIdIsInProgress(member.xid) {
            true => UpdateLocker::Open,
            false => UpdateLocker::Ended,
        };
        let found = others.map(of).max().unwrap_or(UpdateLocker::Absent);
        pg_sys::pfree(members.cast());
        found
    }
}
