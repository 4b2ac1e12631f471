//! Reads from a version of a row who has locked it.

use super::catch::Result;
use super::param::FromColumn;
use pgrx::pg_sys;

/// This transaction's lock on a version of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnLock {
    /// This transaction has not locked this version.
    Missing,
    /// No other transaction has locked it `FOR UPDATE`.
    Alone,
    /// A transaction that has ended had locked it `FOR UPDATE`.
    BesideEnded,
    /// An open transaction has locked it `FOR UPDATE`.
    BesideOpen,
}

/// Where a version of a row stands: a `ctid`.
pub struct RowPlace(pg_sys::ItemPointerData);

impl FromColumn<'_> for RowPlace {
    const OID: pg_sys::Oid = pg_sys::TIDOID;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: a ctid's datum points to it.
        Ok(Self(unsafe { *datum.cast_mut_ptr::<pg_sys::ItemPointerData>() }))
    }
}

/// This transaction's lock on a version of a row that it has locked `FOR KEY SHARE`. An active snapshot must see the
/// version, so that vacuum leaves it. Can raise an error.
///
/// According to the manual, no other transaction can hold `FOR UPDATE` then, and this transaction has locked each version
/// that it can see. Two hazards of `heap_lock_tuple`:
///
/// - One transaction may raise its lock from `FOR NO KEY UPDATE` while another is about to lock the row `FOR KEY SHARE`.
///   Then both may succeed: after waiting for the weaker lock, it checks again only for updates. (Seen with 15.20: two
///   sessions that do nothing else get there ten times a second.)
/// - While it locks the versions that an open update made, that update may be undone and another one begin, which it
///   doesn't follow. Then the new version has only the locks of others. (Seen with 15.20: once in a thousand locks of a
///   row that each second update leaves as it was.)
pub fn own_lock(table: pg_sys::Oid, place: RowPlace) -> OwnLock {
    // SAFETY: the server knows each multixact in the header of a version that a snapshot sees.
    unsafe { version_header(table, place.0).map_or(OwnLock::Missing, |(xmax, bits)| own_lock_in(xmax, bits)) }
}

/// The `xmax` of a version, and the bits that say what it is. None if the version no longer exists.
unsafe fn version_header(table: pg_sys::Oid, place: pg_sys::ItemPointerData) -> Option<(pg_sys::TransactionId, u32)> {
    // SAFETY: the page stays pinned until the header was read, which happens under the page's lock.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let mut tuple = pg_sys::HeapTupleData { t_self: place, ..Default::default() };
        let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        let any = &raw mut pg_sys::SnapshotAnyData;
        let header = pg_sys::heap_fetch(relation, any, &raw mut tuple, &raw mut buffer, false).then(|| {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let header = &*tuple.t_data;
            let (xmax, bits) = (header.t_choice.t_heap.t_xmax, header.t_infomask.into());
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            pg_sys::ReleaseBuffer(buffer);
            (xmax, bits)
        });
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        header
    }
}

/// What a header says. `xmax` alone does not tell a transaction from a multixact.
///
/// # Safety
/// If the bits say that `xmax` is a multixact, the server must know it.
pub(super) unsafe fn own_lock_in(xmax: pg_sys::TransactionId, bits: u32) -> OwnLock {
    // SAFETY: look-ups by number. The server allocates the members, as many as it says.
    unsafe {
        if bits & pg_sys::HEAP_XMAX_INVALID != 0 {
            return OwnLock::Missing;
        }
        if bits & pg_sys::HEAP_XMAX_IS_MULTI == 0 {
            let own = pg_sys::TransactionIdIsCurrentTransactionId(xmax);
            return if own { OwnLock::Alone } else { OwnLock::Missing };
        }
        let mut members: *mut pg_sys::MultiXactMember = std::ptr::null_mut();
        let count = pg_sys::GetMultiXactIdMembers(xmax, &raw mut members, false, false);
        if count <= 0 {
            return OwnLock::Missing;
        }
        let (mut is_locked, mut found) = (false, OwnLock::Alone);
        for member in std::slice::from_raw_parts(members, count as usize) {
            if pg_sys::TransactionIdIsCurrentTransactionId(member.xid) {
                is_locked = true;
            } else if member.status == pg_sys::MultiXactStatus::MultiXactStatusForUpdate {
                let is_open = pg_sys::TransactionIdIsInProgress(member.xid);
                found = found.max(if is_open { OwnLock::BesideOpen } else { OwnLock::BesideEnded });
            }
        }
        pg_sys::pfree(members.cast());
        if is_locked { found } else { OwnLock::Missing }
    }
}
