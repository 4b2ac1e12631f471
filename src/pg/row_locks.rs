//! Who has locked a row, as its `xmax` tells.

use super::shmem::row_places::RowPlace;
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

/// The open transactions that keep others from updating the row that is at this place, columns of its keys too if `writes_key`. None
/// if the table is another one by now, or another transaction has locked all of it. Waits for nothing. Can raise an error.
pub fn open_lockers(place: RowPlace, writes_key: bool) -> Vec<u32> {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    let table = pg_sys::Oid::from(place.table);
    // SAFETY: the table is locked, so that it stays, and opened only if it is there. What is read of the tuple is copied while its
    // page is locked.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(table, lock) {
            return Vec::new();
        }
        let relation = pg_sys::try_relation_open(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        if relation.is_null() {
            pg_sys::UnlockRelationOid(table, lock);
            return Vec::new();
        }
        let mut found = Vec::new();
        let is_heap = (*(*relation).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID;
        let fork = pg_sys::ForkNumber::MAIN_FORKNUM;
        if is_heap
            && place.block < pg_sys::RelationGetNumberOfBlocksInFork(relation, fork)
            && let Some((xmax, bits)) = read_lock(relation, place)
        {
            found = members(xmax, bits, writes_key);
        }
        pg_sys::relation_close(relation, lock);
        found.retain(|xid| pg_sys::TransactionIdIsInProgress(pg_sys::TransactionId::from(*xid)));
        found
    }
}

/// `xmax` of the tuple at this place, and what its bits say of it.
unsafe fn read_lock(relation: pg_sys::Relation, place: RowPlace) -> Option<(pg_sys::TransactionId, u32)> {
    // SAFETY: the relation is an open heap, and the block is one of it. The buffer is pinned by heap_fetch when it finds a tuple.
    unsafe {
        let mut tuple = pg_sys::HeapTupleData::default();
        tuple.t_self.ip_blkid.bi_hi = (place.block >> 16) as u16;
        tuple.t_self.ip_blkid.bi_lo = (place.block & 0xffff) as u16;
        tuple.t_self.ip_posid = place.offset;
        let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        if !pg_sys::heap_fetch(relation, &raw mut pg_sys::SnapshotAnyData, &raw mut tuple, &raw mut buffer, false) {
            return None;
        }
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let header = &*tuple.t_data;
        let read = (header.t_choice.t_heap.t_xmax, u32::from(header.t_infomask));
        pg_sys::UnlockReleaseBuffer(buffer);
        Some(read)
    }
}

/// Transactions that have a lock which excludes an update, or have updated the row. `FOR KEY SHARE`, which a foreign key takes of
/// another table, excludes an update of a key alone.
unsafe fn members(xmax: pg_sys::TransactionId, bits: u32, writes_key: bool) -> Vec<u32> {
    if bits & pg_sys::HEAP_XMAX_INVALID != 0 {
        return Vec::new();
    }
    let locked_only = bits & pg_sys::HEAP_XMAX_LOCK_ONLY != 0;
    if bits & pg_sys::HEAP_XMAX_IS_MULTI == 0 {
        let is_weak = locked_only && bits & pg_sys::HEAP_LOCK_MASK == pg_sys::HEAP_XMAX_KEYSHR_LOCK;
        return if is_weak && !writes_key { Vec::new() } else { vec![xmax.into_inner()] };
    }
    let mut members: *mut pg_sys::MultiXactMember = std::ptr::null_mut();
    // SAFETY: the id is that of a multixact. The members are an allocation of the server's, of as many as it says.
    unsafe {
        let count = pg_sys::GetMultiXactIdMembers(xmax, &raw mut members, false, locked_only);
        if count <= 0 {
            return Vec::new();
        }
        let all = std::slice::from_raw_parts(members, count as usize);
        let is_strong = |m: &&pg_sys::MultiXactMember| {
            writes_key || m.status != pg_sys::MultiXactStatus::MultiXactStatusForKeyShare
        };
        let strong = all.iter().filter(is_strong);
        let found = strong.map(|member| member.xid.into_inner()).collect();
        pg_sys::pfree(members.cast());
        found
    }
}
