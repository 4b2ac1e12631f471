//! Tests that need a backend: errors that jump, subtransactions, identities, memory, types.
//!
//! Each test is a function of schema `xdb_tests`, in a build with the feature `pg_test`. Only throwaway servers load
//! such a build. `scripts/pg-tests` calls each in a transaction that is rolled back. A failed assertion is an error.
//! pgrx-tests is not used, because it would build the extension once more: see
//! `docs/decisions/0036-tests-inside-of-the-server-have-a-runner-of-their-own.md`.

#[pgrx::pg_schema]
mod xdb_tests {
    use crate::pg::catch::{
        Fields, OUT_OF_MEMORY, Passing, PgError, QUERY_CANCELED, Result, UNIQUE_VIOLATION, catch, edge, run_caught,
        sqlstate, throw,
    };
    use crate::pg::descriptors::Descriptors;
    use crate::pg::param::{FromColumn, Interval, array, column, value};
    use crate::pg::row_locks::{OwnLock, RowPlace, own_lock, own_lock_in};
    use crate::pg::shmem::over::{self, Quota};
    use crate::pg::shmem::{Role, Slot, slow, waiter};
    use crate::pg::spi::{self, Spi};
    use crate::pg::wake::waiter::{Registration, wait_for_any};
    use crate::pg::wake::{NewCall, worker_key};
    use crate::pg::{identity, latch, names, subxact};
    use pgrx::pg_sys;
    use pgrx::prelude::*;
    use std::ffi::CString;
    use xdb_engine::{ExecutionId, Timestamp};

    /// The only value of a statement.
    fn one(sql: &str) -> String {
        let read = |spi: &Spi| spi.first(sql, &[], |row| row.at::<String>(0));
        spi::connect(read).expect(sql).expect("a row")
    }

    fn run(sql: &str) -> Result<()> {
        spi::connect(|spi| spi.utility(sql))
    }

    /// The error of `body`, whose subtransaction is rolled back.
    fn error_of<T>(body: impl FnOnce() -> Result<T>) -> PgError {
        match subxact::guarded(body) {
            Ok(_) => panic!("it was to fail"),
            Err(error) => error,
        }
    }

    fn fields(error: &PgError) -> &Fields {
        error
    }

    // --- shared memory -----------------------------------------------------------------------------------------------

    #[pg_test]
    fn of_the_marks_of_slow_tables_the_oldest_gives_way() {
        let database = crate::pg::process::database();
        let started = std::time::Instant::now();
        while Slot::find(database, Role::Scheduler).is_none() {
            assert!(started.elapsed().as_secs() < 30, "there is no scheduler");
            crate::pg::latch::wait_for_latch(50);
        }
        // No table has such an oid.
        let mark = |number: u32| slow::SlowMark { kind: slow::MarkKind::Slow, oid: u32::MAX - number };
        (0..=slow::PLACES as u32).for_each(|number| slow::mark(database, mark(number)));
        let marks: Vec<_> = slow::marks(database).collect();
        assert_eq!((marks.len(), marks.contains(&mark(0))), (slow::PLACES, false));
        slow::mark(database, mark(1));
        assert_eq!(slow::marks(database).count(), slow::PLACES, "one mark has one place");
        let killer = slow::SlowMark { kind: slow::MarkKind::Killer, oid: u32::MAX };
        slow::mark(database, killer);
        (0..=slow::PLACES as u32).for_each(|number| slow::mark(database, mark(number)));
        assert!(slow::marks(database).any(|mark| mark == killer), "slow tables push it out");
    }

    #[pg_test]
    fn a_for_update_lock_of_another_transaction_is_seen() {
        use pg_sys::MultiXactStatus as Status;
        // SAFETY: plain functions of the server. No transaction has the next number yet: it counts as one that has not
        // ended.
        let (own, next) = unsafe { (pg_sys::GetCurrentTransactionId(), pg_sys::ReadNextFullTransactionId().value) };
        let next = pg_sys::TransactionId::from(next as u32);
        let (ended, key_share) = (pg_sys::TransactionId::from(3), Status::MultiXactStatusForKeyShare);
        let lockers = |one, other, status| {
            // SAFETY: makes up the lockers of a row; no row ever names them.
            unsafe {
                pg_sys::MultiXactIdSetOldestMember();
                let multixact = pg_sys::MultiXactIdCreate(one, key_share, other, status);
                own_lock_in(multixact, pg_sys::HEAP_XMAX_IS_MULTI)
            }
        };
        assert_eq!(lockers(own, next, Status::MultiXactStatusForNoKeyUpdate), OwnLock::Alone);
        assert_eq!(lockers(own, next, Status::MultiXactStatusForUpdate), OwnLock::BesideOpen);
        assert_eq!(lockers(own, ended, Status::MultiXactStatusForUpdate), OwnLock::BesideEnded);
        assert_eq!(lockers(ended, next, Status::MultiXactStatusForUpdate), OwnLock::Missing);
    }

    #[pg_test]
    fn a_version_of_a_row_with_only_the_lock_of_another_transaction_is_told_from_a_locked_one() {
        run("CREATE TABLE pg_temp.locked AS SELECT 1 AS id").expect("a table");
        let seen = || {
            let read = |row: &spi::Row| Ok((row.at::<pg_sys::Oid>(0)?, row.at::<RowPlace>(1)?));
            let sql = "SELECT tableoid, ctid FROM pg_temp.locked";
            let (table, place) = spi::connect(|spi| spi.first(sql, &[], read)).expect(sql).expect("a row");
            own_lock(table, place)
        };
        let lock = || run("SELECT FROM pg_temp.locked FOR KEY SHARE");
        assert_eq!(seen(), OwnLock::Missing);
        // The row still names the subtransaction that has ended, as it would name another session's.
        subxact::undone(lock).expect("a lock");
        assert_ne!(one("SELECT xmax::text FROM pg_temp.locked"), "0");
        assert_eq!(seen(), OwnLock::Missing);
        lock().expect("a lock");
        assert_eq!(seen(), OwnLock::Alone);
    }

    #[pg_test]
    fn descriptors_are_reserved_all_or_none_and_given_back() {
        let mut many = Descriptors::default();
        assert!(!many.reserve_all(usize::MAX), "no server has as many");
        let few = || Descriptors::default().reserve_all(Descriptors::most());
        assert!(few() && few(), "refused or dropped places are free for other sessions");
        assert!(many.reserve_all(Descriptors::most()) && !few());
    }

    #[pg_test]
    fn a_reactor_may_always_open_one_connection() {
        let mut taken = 0;
        // SAFETY: only counts; all are given back below.
        while unsafe { pg_sys::AcquireExternalFD() } {
            taken += 1;
        }
        for left in 0..16 {
            let mut own = Descriptors::default();
            let connections = own.reserve_connections(100);
            assert!((1..16).contains(&connections), "{connections} with {left} left");
            drop(own);
            // SAFETY: was acquired above.
            unsafe { pg_sys::ReleaseExternalFD() };
            taken -= 1;
        }
        // SAFETY: as above.
        (0..taken).for_each(|_| unsafe { pg_sys::ReleaseExternalFD() });
    }

    #[pg_test]
    fn a_wake_up_during_a_poll_ends_the_next_wait() {
        let (execution, other) = ([7; 16], [8; 16]);
        let (place, unwoken) = (Registration::register(&execution), Registration::register(&other));
        // SAFETY: set once at the start of the process.
        let database = unsafe { pg_sys::MyDatabaseId };
        let waits = |places: [&Registration; 2], at_most: i64| {
            let began = std::time::Instant::now();
            wait_for_any(places, at_most);
            began.elapsed().as_millis() as i64
        };
        for both in [[&place, &unwoken], [&unwoken, &place]] {
            waiter::wake(database, Some(&[execution].into()));
            // As a wait inside the server does.
            latch::wait_for_latch(0);
            assert!(waits(both, 20_000) < 10_000, "the wake-up is lost");
            assert!(waits(both, 50) >= 50, "it is one wake-up");
        }
    }

    // --- types -------------------------------------------------------------------------------------------------------

    #[pg_test]
    fn a_session_has_places_of_its_own_to_wait_at() {
        let many = || (0..2 * waiter::PLACES).map(|_| Registration::register(&[7; 16])).collect::<Vec<_>>();
        let places = |all: &[Registration]| all.iter().filter(|one| one.has_place()).count();
        let own = many();
        assert_eq!(places(&own), waiter::PLACES);
        assert_eq!(places(&own[..waiter::PLACES]), waiter::PLACES, "the first ones");
        drop(own);
        assert_eq!(places(&many()), waiter::PLACES, "what was given back is free");
    }

    #[pg_test]
    fn a_call_wakes_one_session_that_waits_for_its_shard_and_no_wake_up_is_lost_with_a_place() {
        const WORKER: i32 = i32::MAX;
        // SAFETY: set once at the start of the process.
        let database = unsafe { pg_sys::MyDatabaseId };
        let place = |first, last| Registration::register_worker(WORKER, (first, last));
        let commit = |shard, is_due| {
            waiter::wake_for_calls(database, &worker_key(WORKER), &[NewCall { shard, is_due }]);
        };
        let is_woken = |place: &Registration| place.place().is_some_and(waiter::take_woken);
        let (low, all) = (place(0, 9), place(0, 1023));
        let another = place(0, 1023);
        // As many are woken as there are calls, of those whose shards they are.
        commit(500, true);
        assert_eq!([&low, &all, &another].map(is_woken), [false, false, true]);
        // A poll that is over passes nothing on.
        another.served();
        commit(500, true);
        commit(500, true);
        commit(5, true);
        assert_eq!([&low, &all, &another].map(is_woken), [true, true, true]);
        [&low, &all, &another].into_iter().for_each(Registration::served);
        // What comes due later is for the one that watches.
        commit(500, false);
        assert_eq!([&low, &all, &another].map(is_woken), [false, true, false]);
        // It leaves before it has looked: another one looks, and watches from here on.
        assert!(!another.place().is_some_and(waiter::watches));
        drop(all);
        assert_eq!([&low, &another].map(is_woken), [false, true]);
        assert!([&low, &another].map(|place| place.place().is_some_and(waiter::watches)) == [true, true]);
        another.served();
        // One that is woken, and leaves without a poll.
        let last = place(0, 1023);
        commit(500, true);
        drop(last);
        assert_eq!([&low, &another].map(is_woken), [false, true]);
    }

    #[pg_test]
    fn a_quota_is_exceeded_for_one_role_one_database_and_one_kind() {
        let oid = |number: u32| pg_sys::Oid::from(u32::MAX - number);
        let (here, there) = (oid(1), oid(2));
        over::set(here, Quota::Messages, &[(oid(3), 7), (oid(4), 8)]);
        over::set(there, Quota::Messages, &[(oid(3), 9)]);
        over::set(here, Quota::Running, &[(oid(4), 5)]);
        let all = || {
            [(here, 3), (here, 4), (there, 3), (there, 4)].map(|(database, role)| {
                [Quota::Messages, Quota::Running].map(|quota| over::limit(database, oid(role), quota))
            })
        };
        assert_eq!(all(), [[Some(7), None], [Some(8), Some(5)], [Some(9), None], [None, None]]);
        // New values replace the old ones.
        over::set(here, Quota::Messages, &[(oid(4), 6)]);
        over::set(here, Quota::Running, &[]);
        assert_eq!(all(), [[None, None], [Some(6), None], [Some(9), None], [None, None]]);
        // A role without a place is not over.
        let many: Vec<_> = (10..=10 + over::PLACES as u32).map(|number| (oid(number), 1)).collect();
        over::set(here, Quota::Running, &many);
        let of = |number| over::limit(here, oid(number), Quota::Running);
        assert_eq!((of(10), of(10 + over::PLACES as u32)), (Some(1), None));
        assert_eq!(over::limit(there, oid(3), Quota::Messages), Some(9));
        over::clear(here);
        assert_eq!(all(), [[None, None], [None, None], [Some(9), None], [None, None]]);
        over::set(there, Quota::Running, &many);
        over::clear(there);
        assert_eq!(all(), [[None; 2]; 4]);
        over::set(there, Quota::Running, &[(oid(3), 1)]);
        assert_eq!(over::limit(there, oid(3), Quota::Running), Some(1), "places are given back");
        over::clear(there);
    }

    #[pg_test]
    fn a_column_is_read_as_its_own_type_alone() {
        type Read = fn(&spi::Row) -> Result<()>;
        let as_text: Read = |row| row.at::<Option<String>>(0).map(drop);
        let as_number: Read = |row| row.at::<i64>(0).map(drop);
        let as_texts: Read = |row| row.at::<Vec<String>>(0).map(drop);
        let as_id: Read = |row| row.at::<ExecutionId>(0).map(drop);
        let as_time: Read = |row| row.at::<Timestamp>(0).map(drop);
        for (sql, read) in [
            ("SELECT 42", as_text),
            ("SELECT 42", as_number),
            ("SELECT 42::bigint", as_time),
            ("SELECT 'a'::name", as_text),
            ("SELECT '{}'::jsonb", as_text),
            ("SELECT 'a'::text", as_texts),
            ("SELECT ARRAY[1]", as_texts),
            ("SELECT 'a'::text", as_id),
            ("SELECT now()", as_number),
            ("SELECT NULL::int", as_text),
            // Also for rows after the first. No other column is read by accident.
            ("SELECT n FROM generate_series(1, 3) n", as_text),
        ] {
            let error = error_of(|| spi::connect(|spi| spi.rows(sql, &[], read)));
            assert!(error.message.contains(" of a result has type "), "{sql}: {error}");
        }
    }

    #[pg_test]
    fn columns_are_found_by_their_names() {
        let sql = "SELECT 1 AS one, 'zwei' AS two, NULL::bigint AS three";
        let read = |row: &spi::Row| {
            let three: Option<i64> = row.get("three")?;
            Ok((row.get("one")?, row.get("two")?, three, row.get("one")?))
        };
        let found: Option<(i32, String, _, i32)> = spi::connect(|spi| spi.first(sql, &[], read)).expect("a row");
        assert_eq!(found, Some((1, "zwei".to_owned(), None, 1)));
        let error = error_of(|| spi::connect(|spi| spi.first(sql, &[], |row| row.get::<i32>("four"))));
        assert!(error.message.contains("a statement gives no column four"), "{error}");
        let error = error_of(|| spi::connect(|spi| spi.first(sql, &[], |row| row.get::<i64>("three"))));
        assert!(error.message.contains("column three of a result: a column that can't be null is"), "{error}");
    }

    /// A column for which there is no memory.
    #[derive(Debug)]
    struct TooMuch;

    impl FromColumn<'_> for TooMuch {
        const OID: pg_sys::Oid = pg_sys::TEXTOID;
        unsafe fn read(_: pg_sys::Datum) -> Result<Self> {
            Err(PgError::new(OUT_OF_MEMORY, "out of memory").detail("7 bytes were needed."))
        }
    }

    #[pg_test]
    fn an_error_of_a_column_names_it_and_is_the_same_otherwise() {
        let error =
            error_of(|| spi::connect(|spi| spi.first("SELECT 'a'::text AS one", &[], |row| row.get::<TooMuch>("one"))));
        assert_eq!(error.message, "column one of a result: out of memory");
        assert_eq!((error.code, error.detail.as_deref()), (OUT_OF_MEMORY, Some("7 bytes were needed.")));
    }

    #[pg_test]
    fn a_parameter_arrives_as_the_server_reads_its_text() {
        let id = ExecutionId([7; 16]);
        let uuid = "07070707-0707-0707-0707-070707070707";
        let long = "ü".repeat(3000);
        let moment = Timestamp(1_000_000);
        let as_text = |parameter, ty: &str| {
            let sql = format!("SELECT ($1::{ty})::text");
            spi::connect(|spi| spi.first(&sql, &[parameter], |row| row.at::<Option<String>>(0)))
                .expect(ty)
                .expect("a row")
        };
        identity::with_value_formats(|| {
            for (parameter, ty, text) in [
                (value(true), "bool", "true"),
                (value(-3i16), "smallint", "-3"),
                (value(i32::MIN), "int", "-2147483648"),
                (value(i64::MAX), "bigint", "9223372036854775807"),
                (value("a\"b"), "text", "a\"b"),
                (value(id), "uuid", uuid),
                (value(moment), "timestamptz", "1970-01-01 00:00:01+00"),
                (array([1i32; 0]), "int[]", "{}"),
                (array([1i16, -1, 3]), "smallint[]", "{1,-1,3}"),
                (array([true, false]), "bool[]", "{t,f}"),
                (array([1i64, 2]), "bigint[]", "{1,2}"),
                (array([pg_sys::Oid::from(u32::MAX)]), "oid[]", "{4294967295}"),
                (array(["", "a", "bc", "d e", "NULL"]), "text[]", "{\"\",a,bc,\"d e\",\"NULL\"}"),
                (array([id, id]), "uuid[]", &format!("{{{uuid},{uuid}}}")),
                (array([moment]), "timestamptz[]", "{\"1970-01-01 00:00:01+00\"}"),
                (array([None, Some("a"), None]), "text[]", "{NULL,a,NULL}"),
                (array([Some(1i64), None]), "bigint[]", "{1,NULL}"),
                (array(vec![None::<i32>; 9]), "int[]", "{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}"),
                (array([Some(id), None]), "uuid[]", &format!("{{{uuid},NULL}}")),
                (column(["only"]), "text", "only"),
                (column(["one", "two"]), "text[]", "{one,two}"),
                (array([long.as_str()]), "text[]", &format!("{{{long}}}")),
            ] {
                assert_eq!(as_text(parameter, ty).as_deref(), Some(text), "{ty}");
            }
            assert_eq!(as_text(value(None::<&str>), "text"), None);
            Ok(())
        })
        .expect("no error");
    }

    #[pg_test]
    fn names_in_lists_are_read_as_sql_reads_them() {
        let read = |list: &str| names::split(list).map(|names| names.join("|"));
        assert_eq!(read("a, B ,\"C d\",\"e,\"\"f\"").as_deref(), Some("a|b|C d|e,\"f"));
        for broken in ["a,", "\"a", "a b", ",", "\"a\"b"] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    // --- errors ------------------------------------------------------------------------------------------------------

    #[pg_test]
    fn an_error_is_thrown_again_with_every_field_it_was_caught_with() {
        let raising = "DO $do$ BEGIN RAISE EXCEPTION 'the %', 'message' USING ERRCODE = 'AB123', DETAIL = 'the detail',
            HINT = 'the hint', SCHEMA = 's', TABLE = 't', COLUMN = 'c', DATATYPE = 'd', CONSTRAINT = 'n'; END $do$";
        let first = error_of(|| run(raising));
        assert_eq!((first.code, first.sqlstate().as_str()), (sqlstate(b"AB123"), "AB123"));
        let names = [&first.schema, &first.table, &first.column, &first.datatype, &first.constraint];
        assert_eq!(names.map(|name| name.as_deref()), [Some("s"), Some("t"), Some("c"), Some("d"), Some("n")]);
        assert_eq!((first.message.as_str(), first.detail.as_deref()), ("the message", Some("the detail")));
        assert_eq!(first.hint.as_deref(), Some("the hint"));
        assert!(first.context.as_deref().is_some_and(|text| text.contains("inline_code_block line 1 at RAISE")));
        thrown_again(&first);

        let second = error_of(|| run("DO $do$ BEGIN EXECUTE 'SELECT no_such_column'; END $do$"));
        assert_eq!((second.internal_query.as_deref(), second.internal_position), (Some("SELECT no_such_column"), 8));
        thrown_again(&second);

        let mut third = PgError::internal("made here").detail("d").hint("h");
        (third.detail_log, third.position) = (Some("for the log".to_owned()), 17);
        thrown_again(&third);
    }

    fn thrown_again(error: &PgError) {
        let copy = error.clone();
        // SAFETY: the frames between hold nothing when the error jumps: the edge has dropped it.
        let again = unsafe { catch(|| edge::<()>(|| Err(copy))) }.expect_err("it was thrown");
        assert_eq!(fields(&again), fields(error));
    }

    #[pg_test]
    fn no_panic_gets_past_the_edge() {
        // SAFETY: as above.
        let panic = unsafe { catch(|| edge::<()>(|| panic!("a conversion failed"))) }.expect_err("it was thrown");
        assert_eq!((panic.sqlstate().as_str(), panic.message.as_str()), ("XX000", "a conversion failed"));
        // An ERROR that came through a function that pgrx wraps.
        let wrapped = unsafe { catch(|| edge(|| Ok(pg_sys::palloc(usize::MAX)))) }.expect_err("too much");
        assert!(wrapped.message.contains("invalid memory alloc request size"), "{wrapped}");
        let thrown = run_caught::<()>(|| throw(PgError::new(UNIQUE_VIOLATION, "whole"))).expect_err("it was thrown");
        assert_eq!((thrown.code, thrown.message.as_str()), (UNIQUE_VIOLATION, "whole"));
    }

    #[pg_test]
    fn some_errors_pass_and_more_of_them_in_statements_of_the_engine() {
        let passes = |code, of_engine| PgError::new(sqlstate(code), "an error").passes(of_engine);
        for (code, expected) in [
            (b"55P03", Some(Passing::Lock)),
            (b"40P01", Some(Passing::Conflict)),
            (b"40001", Some(Passing::Conflict)),
            (b"53200", Some(Passing::Server)),
            (b"58030", Some(Passing::Server)),
            (b"42P01", None),
        ] {
            assert_eq!([false, true].map(|of_engine| passes(code, of_engine)), [expected; 2]);
        }
        for code in [b"57014", b"23505"] {
            let expected = [None, Some(Passing::Conflict)];
            assert_eq!([false, true].map(|of_engine| passes(code, of_engine)), expected);
        }
    }

    unsafe extern "C-unwind" {
        fn palloc(bytes: usize) -> *mut std::ffi::c_void;
    }

    #[pg_test]
    fn an_error_without_memory_for_its_copy_is_caught_where_it_was_raised() {
        /// More levels than the server has room for errors.
        fn within(levels: u32) -> Result<()> {
            // SAFETY: raw calls, and frames that own nothing.
            unsafe {
                match levels {
                    0 => catch(|| palloc(100)).map(drop),
                    _ => catch(|| within(levels - 1))?,
                }
            }
        }
        out_of_memory(|| within(8));
    }

    /// The body has a memory context that gives no memory, not even for the copy of an error.
    fn out_of_memory<T>(body: impl FnOnce() -> Result<T>) {
        // SAFETY: a context whose pieces have eight bytes gives no memory for anything larger.
        let error = unsafe {
            let context = pg_sys::SlabContextCreate(pg_sys::CurrentMemoryContext, c"tests".as_ptr(), 8192, 8);
            let before = pg_sys::MemoryContextSwitchTo(context);
            let failed = run_caught(body);
            pg_sys::MemoryContextSwitchTo(before);
            failed.err().expect("there was no memory")
        };
        assert_eq!((error.code, error.message.as_str()), (OUT_OF_MEMORY, "out of memory"));
    }

    #[pg_test]
    fn a_parameter_without_memory_is_an_error_and_the_server_lives() {
        out_of_memory(|| Ok(value("a text")));
        out_of_memory(|| Ok(value(ExecutionId([1; 16]))));
        out_of_memory(|| Ok(value(Interval(std::time::Duration::from_secs(1)))));
        out_of_memory(|| Ok(array([1, 2, 3])));
    }

    #[pg_test]
    fn a_statement_that_takes_too_long_is_cancelled_alone() {
        let error = error_of(|| subxact::with_timeout(50, 0, pg_sys::InvalidOid, || run("SELECT pg_sleep(20)")));
        assert_eq!(error.code, QUERY_CANCELED);
        subxact::with_timeout(200, 0, pg_sys::InvalidOid, || run("SELECT 1")).expect("in time");
        run("SELECT pg_sleep(0.4)").expect("no timer is armed");
    }

    // --- subtransactions ---------------------------------------------------------------------------------------------

    /// What a subtransaction must leave as it was.
    fn surroundings() -> (pg_sys::SubTransactionId, pg_sys::MemoryContext, pg_sys::ResourceOwner, i32, bool) {
        // SAFETY: variables and accessors of the server.
        unsafe {
            (
                pg_sys::GetCurrentSubTransactionId(),
                pg_sys::CurrentMemoryContext,
                pg_sys::CurrentResourceOwner,
                pg_sys::GetCurrentTransactionNestLevel(),
                pg_sys::ActiveSnapshotSet(),
            )
        }
    }

    #[pg_test]
    fn a_failed_guarded_body_is_rolled_back() {
        run("CREATE TEMP TABLE done (what text PRIMARY KEY)").expect("created");
        let insert =
            |what: &str| spi::connect(|spi| spi.on_app_tables().run("INSERT INTO done VALUES ($1)", &[value(what)]));
        let before = surroundings();
        assert_eq!(subxact::guarded(|| insert("kept")).expect("inserted"), 1);
        assert_eq!(surroundings(), before);
        let error = error_of(|| insert("undone").and_then(|_| insert("kept")));
        assert_eq!((error.code, error.constraint.as_deref()), (UNIQUE_VIOLATION, Some("done_pkey")));
        assert_eq!(surroundings(), before);
        // A panic in the middle of SPI.
        error_of(|| {
            spi::connect(|spi| {
                spi.on_app_tables().run("INSERT INTO done VALUES ($1)", &[value("panicked")])?;
                if spi.rows("SELECT 1", &[], |_| Ok(()))?.len() == 1 { panic!("in SPI") } else { Ok(()) }
            })
        });
        assert_eq!(surroundings(), before);
        assert_eq!(subxact::undone(|| insert("looked at").map(|_| 7)).expect("a value"), 7);
        // Nested: a failure of the inner one concerns only the outer one.
        subxact::guarded(|| {
            insert("outer")?;
            error_of(|| insert("inner").and_then(|_| run("SELECT 1 / 0")));
            Ok(())
        })
        .expect("the outer one went well");
        assert_eq!(surroundings(), before);
        assert_eq!(one("SELECT string_agg(what, ',' ORDER BY what) FROM done"), "kept,outer");
    }

    // --- identity and settings ---------------------------------------------------------------------------------------

    fn session() -> [String; 6] {
        [
            "SELECT current_user::text",
            "SELECT current_setting('search_path')",
            "SELECT current_setting('TimeZone')",
            "SELECT current_setting('DateStyle')",
            "SELECT current_setting('lock_timeout')",
            "SELECT current_setting('work_mem')",
        ]
        .map(one)
    }

    fn security_context() -> i32 {
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        // SAFETY: an accessor.
        unsafe { pg_sys::GetUserIdAndSecContext(&raw mut user, &raw mut context) };
        context
    }

    #[pg_test]
    fn identity_and_settings_are_put_back_also_after_an_error() {
        run("CREATE ROLE xdb_tests_owner").expect("created");
        run("SET LOCAL TimeZone = 'Asia/Tokyo'; SET LOCAL DateStyle = 'German'; SET LOCAL search_path = 'public'")
            .expect("set");
        let owner = identity::role_named("xdb_tests_owner").expect("no error").expect("it is there");
        run("SET LOCAL ROLE xdb_tests_owner").expect("set");
        let before = session();
        assert_eq!(before[0], "xdb_tests_owner");
        let restricted = pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        let local = pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32;

        type Scope = fn(pg_sys::Oid, &mut dyn FnMut() -> Result<()>) -> Result<()>;
        let as_engine: Scope = |_, body| identity::as_engine(body);
        let as_owner: Scope = |owner, body| identity::as_process_owner(owner, &[], Some(c"77ms"), body);
        let as_caller: Scope = |_, body| identity::as_caller(body);
        let with_formats: Scope = |_, body| identity::with_value_formats(body);
        let with_timeout: Scope = |_, body| identity::with_lock_timeout(std::time::Duration::from_millis(77), body);
        for (name, scope, expected) in [
            ("engine", as_engine, ["postgres", "pg_catalog, pg_temp", "Asia/Tokyo", "German, DMY", "0"]),
            ("owner", as_owner, ["xdb_tests_owner", "pg_catalog, pg_temp", "UTC", "ISO, MDY", "77ms"]),
            ("caller", as_caller, ["xdb_tests_owner", "public", "UTC", "ISO, MDY", "0"]),
            ("formats", with_formats, ["xdb_tests_owner", "public", "UTC", "ISO, MDY", "0"]),
            ("timeout", with_timeout, ["xdb_tests_owner", "public", "Asia/Tokyo", "German, DMY", "77ms"]),
        ] {
            let mut inside = None;
            scope(owner, &mut || {
                inside = Some((session(), security_context()));
                Ok(())
            })
            .expect(name);
            let (settings, context) = inside.expect("it ran");
            assert_eq!(settings[..5], expected, "{name}");
            // The session is a superuser's who has become the caller.
            assert_eq!(context & restricted != 0, ["owner", "caller"].contains(&name), "{name}");
            assert_eq!(context & local != 0, ["engine", "owner", "caller"].contains(&name), "{name}");
            assert_eq!((session(), security_context()), (before.clone(), 0), "{name}");

            error_of(|| scope(owner, &mut || run("SELECT 1 / 0")));
            assert_eq!((session(), security_context()), (before.clone(), 0), "{name}, after an error");
            error_of(|| scope(owner, &mut || panic!("in the middle")));
            assert_eq!((session(), security_context()), (before.clone(), 0), "{name}, after a panic");

            // A setting made by the body outlives it only in the caller's own scopes.
            scope(owner, &mut || run("SET LOCAL work_mem = '7MB'")).expect(name);
            let kept = ["formats", "timeout"].contains(&name);
            assert_eq!(session()[5] == "7MB", kept, "{name}");
            run("SET LOCAL work_mem TO DEFAULT").expect("set");
        }
    }

    #[pg_test]
    fn the_next_owner_does_not_find_objects_of_another_owner_in_pg_temp() {
        run("CREATE ROLE xdb_tests_owner").expect("created");
        let owner = identity::role_named("xdb_tests_owner").expect("no error").expect("it is there");
        let there = "SELECT (to_regprocedure('pg_temp.helper()') IS NOT NULL)::text";
        for _ in 0..2 {
            identity::as_process_owner(owner, &[], None, || {
                run("CREATE FUNCTION pg_temp.helper() RETURNS int LANGUAGE sql AS 'SELECT 42'")?;
                assert_eq!((one("SELECT pg_temp.helper()::text"), one(there)), ("42".into(), "true".into()));
                Ok(())
            })
            .expect("it may have them meanwhile");
            assert_eq!(one(there), "false");
        }
    }

    #[pg_test]
    fn an_owners_settings_hold_as_far_as_it_may_set_them() {
        run("CREATE ROLE xdb_tests_owner; CREATE ROLE xdb_tests_other; DO 'BEGIN END'").expect("done");
        let [owner, other] = ["xdb_tests_owner", "xdb_tests_other"]
            .map(|name| identity::role_named(name).expect("no error").expect("it is there"));
        let setting = |name: &str, value: &str| (CString::new(name).expect("text"), CString::new(value).expect("text"));
        let own = [
            setting("xdbtest.tenant", "a"),
            // PL/pgSQL's own: for superusers only, for all roles, and with a value that it refuses.
            setting("plpgsql.variable_conflict", "use_column"),
            setting("plpgsql.extra_warnings", "shadowed_variables"),
            setting("plpgsql.check_asserts", "perhaps"),
            setting("plpgsql.unknown", "1"),
        ];
        let now = || {
            [
                "SELECT COALESCE(current_setting('xdbtest.tenant', true), '')",
                "SELECT current_setting('plpgsql.variable_conflict')",
                "SELECT current_setting('plpgsql.extra_warnings')",
                "SELECT current_setting('plpgsql.check_asserts')",
            ]
            .map(one)
        };
        let before = now();
        assert_eq!(before, ["", "error", "none", "on"]);
        let holds = || {
            assert_eq!(now(), ["a", "error", "shadowed_variables", "on"]);
            run("SET xdbtest.tenant = 'its own'; SET plpgsql.check_asserts = off")
        };
        identity::as_process_owner(owner, &own, None, holds).expect("it went well");
        assert_eq!(now(), before);
        error_of(|| {
            identity::as_process_owner(owner, &own, None, || {
                holds()?;
                run("SELECT 1 / 0")
            })
        });
        assert_eq!(now(), before, "after an error");
        // The next owner has settings of its own, or none.
        let tenant = || Ok(one("SELECT current_setting('xdbtest.tenant', true)"));
        let theirs = [setting("xdbtest.tenant", "b")];
        assert_eq!(identity::as_process_owner(other, &theirs, None, tenant).expect("it went well"), "b");
        assert_eq!(identity::as_process_owner(owner, &own, None, tenant).expect("it went well"), "a");
        assert_eq!(identity::as_process_owner(other, &[], None, tenant).expect("it went well"), "");
    }

    #[pg_test]
    fn no_advisory_lock_of_one_owner_is_the_next_ones() {
        run("CREATE ROLE xdb_tests_owner").expect("created");
        let owner = identity::role_named("xdb_tests_owner").expect("no error").expect("it is there");
        let locks = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        let takes = || run("SELECT pg_advisory_lock(4711), pg_advisory_lock(4711), pg_advisory_lock_shared(4712)");
        identity::as_process_owner(owner, &[], None, || {
            takes()?;
            assert_eq!(one(locks), "2");
            Ok(())
        })
        .expect("it may have them meanwhile");
        assert_eq!(one(locks), "0");
        // As a step that fails under a guard.
        error_of(|| {
            identity::as_process_owner(owner, &[], None, || {
                takes()?;
                run("SELECT 1 / 0")
            })
        });
        identity::clean_session();
        assert_eq!(one(locks), "0", "after an error");
    }

    #[pg_test]
    fn no_owner_determines_the_random_numbers_of_the_next_owner() {
        run("CREATE ROLE xdb_tests_owner").expect("created");
        let owner = identity::role_named("xdb_tests_owner").expect("no error").expect("it is there");
        let draws = "SELECT random()::text";
        let mut drawn = std::collections::BTreeSet::new();
        for round in 0..10 {
            identity::as_process_owner(owner, &[], None, || run("SELECT setseed(0.5)")).expect("it may");
            assert!(drawn.insert(one(draws)), "round {round}");
            // As a step that fails under a guard.
            error_of(|| identity::as_process_owner(owner, &[], None, || run("SELECT setseed(0.5), 1 / 0")));
            identity::clean_session();
            assert!(drawn.insert(one(draws)), "round {round}, after an error");
        }
        run("SELECT setseed(0.5)").expect("set");
        let known = one(draws);
        run("SELECT setseed(0.5)").expect("set");
        assert_eq!(one(draws), known, "a seed determines what is drawn");
    }

    // --- memory ------------------------------------------------------------------------------------------------------

    /// The bytes that this process has allocated, by Postgres or by Rust.
    fn allocated() -> usize {
        // SAFETY: figures of the C library's allocator, which both use.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }

    /// The first rounds may allocate memory that is kept once. Later rounds may not.
    fn does_not_grow(what: &str, mut body: impl FnMut(u32)) {
        (0..200).for_each(&mut body);
        let before = allocated();
        (200..2200).for_each(&mut body);
        let grown = allocated().saturating_sub(before);
        assert!(grown < 64 << 10, "{what}: 2000 times take {grown} bytes");
    }

    #[pg_test]
    fn caught_errors_and_scopes_give_their_memory_back() {
        // SAFETY: contexts of the server; what the bodies leave in their memory goes with each round.
        let in_context = |body: &mut dyn FnMut()| unsafe {
            let context = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"xdb tests".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            let before = pg_sys::MemoryContextSwitchTo(context);
            body();
            pg_sys::MemoryContextSwitchTo(before);
            pg_sys::MemoryContextDelete(context);
        };
        does_not_grow("errors", |_| {
            in_context(&mut || {
                error_of(|| spi::connect(|spi| spi.rows("SELECT 1 / $1", &[value(0)], |_| Ok(()))));
            });
        });
        does_not_grow("panics", |_| {
            in_context(&mut || {
                let panic = |_: &spi::Row| -> Result<()> { throw(PgError::internal("in the middle")) };
                error_of(|| spi::connect(|spi| spi.rows("SELECT 1", &[], panic)));
            });
        });
        does_not_grow("scopes", |_| {
            in_context(&mut || identity::as_engine(|| identity::with_value_formats(|| Ok(()))).expect("no error"));
        });
        does_not_grow("subtransactions that go well", |_| {
            in_context(&mut || subxact::guarded(|| Ok(())).expect("no error"));
        });
        does_not_grow("results", |_| {
            in_context(&mut || {
                let rows = spi::connect(|spi| {
                    spi.with_latest_snapshot(|spi| {
                        let sql = "SELECT repeat('x', 1000) FROM generate_series(1, 50)";
                        spi.rows(sql, &[], |row| row.at::<String>(0))
                    })
                });
                assert_eq!(rows.expect("rows").len(), 50);
            });
        });
    }

    #[pg_test]
    fn a_session_keeps_a_limited_number_of_plans() {
        let prepared = |number| {
            let sql = format!("SELECT {number}, $1");
            spi::connect(|spi| spi.on_app_tables().first(&sql, &[value(number)], |row| row.at::<i32>(1)))
                .expect("a row")
        };
        for number in 0..1500 {
            assert_eq!(prepared(number), Some(number));
        }
        let before = allocated();
        for number in 1500..6000 {
            assert_eq!(prepared(number), Some(number));
        }
        let grown = allocated().saturating_sub(before);
        // A thousand plans take a few megabytes; three thousand would take more.
        assert!(grown < 16 << 20, "4500 more statements take {grown} bytes");
    }
}
