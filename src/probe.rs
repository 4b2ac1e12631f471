//! Functions to test the plumbing with.
use crate::pg::{
    shmem::{self, Lane, Slot, call},
    wake,
};
use pgrx::prelude::*;

extension_sql!(
    "CREATE SCHEMA xdb; CREATE TABLE xdb.instances (i int);",
    name = "tables",
    bootstrap
);

#[pg_extern]
fn xdb_slots() -> String {
    let mut out = format!(
        "launcher {:?} preloaded {} waiters {}\n",
        shmem::launcher_pid(),
        shmem::is_preloaded(),
        shmem::waiter::in_use()
    );
    for s in Slot::all() {
        out += &format!("{:?} {:?}\n", s.phase(), s.status());
    }
    out
}
#[pg_extern]
fn xdb_wake() {
    wake::wake_scheduler_at_commit();
    wake::note_uncommitted_write();
}
#[pg_extern]
fn xdb_uncommitted() -> bool {
    wake::has_uncommitted_writes()
}
#[pg_extern]
fn xdb_close(n: i32) {
    for i in 0..n {
        wake::processes_closed_at_commit([i as u8; 16]);
    }
}
#[pg_extern]
fn xdb_wait(n: i32, ms: i64) -> f64 {
    let t = std::time::Instant::now();
    let r = wake::waiter::Registration::register(&[n as u8; 16]);
    r.wait(ms);
    t.elapsed().as_secs_f64() * 1000.0
}
#[pg_extern]
fn xdb_take_all_waiters() -> bool {
    let v: Vec<_> = (0..1024)
        .map(|_| wake::waiter::Registration::register(&[1; 16]))
        .collect();
    let p = v.iter().any(|r| r.is_polling());
    std::mem::forget(v);
    p
}
#[pg_extern]
fn xdb_lane(on: bool) {
    let db = unsafe { pg_sys::MyDatabaseId };
    if on {
        Slot::find(db, Lane::Main).unwrap().request_lane();
    } else if let Some(s) = Slot::find(db, Lane::SetAside) {
        s.ask_to_leave();
    }
}
#[pg_extern]
fn xdb_err(m: &str) {
    Slot::find(unsafe { pg_sys::MyDatabaseId }, Lane::Main)
        .unwrap()
        .record_error(m);
}
#[pg_extern]
fn xdb_calls(w: i32) -> String {
    let db = unsafe { pg_sys::MyDatabaseId };
    call::started(db, Lane::Main, w);
    call::started(db, Lane::SetAside, w);
    call::finished(db, Lane::Main, w, w % 2 == 0, 5);
    format!(
        "{:?} {}",
        call::of_worker(db, w),
        call::of_database(db).len()
    )
}
