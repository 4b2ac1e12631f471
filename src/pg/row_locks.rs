//! Who has locked a row, as its `xmax` tells.

use pgrx::pg_sys;

/// Whether others have locked a row `FOR UPDATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OthersForUpdate {
    Nobody,
    /// A transaction that has ended.
    Ended,
    Open,
}

/// The same of a row that this transaction has locked `FOR KEY SHARE`, read after that. `xmax` is the column of that name.
///
/// No two transactions can have these locks, says the manual. But where one raises its lock from `FOR NO KEY UPDATE`, another that
/// is just about to lock the row `FOR KEY SHARE` may get through: after it was let in by the weaker lock, `heap_lock_tuple` looks
/// again only for updates (seen with 15.20: two sessions that do nothing else get there ten times a second).
pub fn others_for_update(xmax: u32) -> OthersForUpdate {
    let xmax = pg_sys::TransactionId::from(xmax);
    let mut members: *mut pg_sys::MultiXactMember = std::ptr::null_mut();
    // SAFETY: whose lock stands in the row with those of others is told by a multixact; without others it is this transaction's own
    // id. The members are an allocation of the server's, of as many as it says.
    unsafe {
        if pg_sys::TransactionIdIsCurrentTransactionId(xmax) {
            return OthersForUpdate::Nobody;
        }
        let count = pg_sys::GetMultiXactIdMembers(xmax, &raw mut members, false, false);
        if count <= 0 {
            return OthersForUpdate::Nobody;
        }
        let all = std::slice::from_raw_parts(members, count as usize);
        let others = all.iter().filter(|member| {
            member.status == pg_sys::MultiXactStatus::MultiXactStatusForUpdate
                && !pg_sys::TransactionIdIsCurrentTransactionId(member.xid)
        });
        let of = |member: &pg_sys::MultiXactMember| match pg_sys::TransactionIdIsInProgress(member.xid) {
            true => OthersForUpdate::Open,
            false => OthersForUpdate::Ended,
        };
        let found = others.map(of).max().unwrap_or(OthersForUpdate::Nobody);
        pg_sys::pfree(members.cast());
        found
    }
}
