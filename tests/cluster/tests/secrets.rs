//! Secrets of workers: where they are stored, which roles can read them, and how they sign calls.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

/// The signature of a call with this secret, according to Standard Webhooks. The key is the bytes of the text.
fn signature(db: &mut Db, secret: &str, call: &Call) -> String {
    const BLOCK: usize = 64;
    let mut key = secret.as_bytes().to_vec();
    if key.len() > BLOCK {
        key = db.one(&format!("SELECT sha256({})", bytea(&key)));
    }
    key.resize(BLOCK, 0);
    let padded = |with: u8| key.iter().map(|byte| byte ^ with).collect::<Vec<_>>();
    let (id, timestamp) = (&call.headers["webhook-id"], &call.headers["webhook-timestamp"]);
    let inner = [&padded(0x36)[..], format!("{id}.{timestamp}.{}", call.raw).as_bytes()].concat();
    let sql = format!("SELECT sha256({} || sha256({}))", bytea(&padded(0x5c)), bytea(&inner));
    format!("v1,{}", BASE64_STANDARD.encode(db.one::<Vec<u8>>(&sql)))
}

fn bytea(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'::bytea")
}

/// Checks that the last call for a process was signed with these secrets, in this order.
fn is_signed_with(db: &mut Db, worker: &Worker, process: &str, secrets: &[&str]) {
    let call = worker.calls().into_iter().rfind(|call| call.process_id() == process).expect("a call");
    let expected: Vec<_> = secrets.iter().map(|secret| signature(db, secret, &call)).collect();
    assert_eq!(call.headers["webhook-signature"], expected.join(" "), "{process}");
}

fn application(name: &str) -> (App, Worker) {
    (App::alone(name, ClusterOptions::default()), Worker::start(answer))
}

fn answer(call: &Call) -> Answer {
    match call.api {
        Api::Rpc => output(json!("pong")),
        _ => force_complete(json!(null)),
    }
}

fn one_with_rpc() -> Definition {
    one_step().rpc("ping", json!({}))
}

/// Registers the worker `stub` with this secret.
fn registration(worker: &Worker, secret: &str) -> String {
    format!("SELECT xdb.register_worker('stub', {}, secret => {})", literal(&worker.url()), literal(secret))
}

/// Runs a shell command in the server's data directory, as the server. The command reads what the server writes:
/// otherwise it may end before that, which is an error.
fn shell(superuser: &mut Db, command: &str) {
    superuser.run(&format!("COPY (SELECT) TO PROGRAM {}", literal(&format!("cat >&2; {command}"))));
}

const REASON: &str = "SELECT coalesce(reason, '') FROM xdb.status()";

#[test]
fn a_secret_in_a_file_signs_calls_and_while_it_is_not_there_none_is_made() {
    let (app, worker) = application("secret_file");
    let (mut superuser, mut db) = (app.superuser(), app.db());
    let register = registration(&worker, "file:of stub");
    let refused = |db: &mut Db, sql: &str, why: &str| {
        let error = db.refused(codes::INVALID_ARGUMENT, sql);
        assert!(error.message.contains(why), "{error:?}");
        assert!(!error.message.contains("of stub"), "{error:?}");
    };
    refused(&mut superuser, &register, "it is in a file, and xdb.secrets_directory is not set");
    shell(&mut superuser, "mkdir secrets");
    app.cluster().set("xdb.secrets_directory", "secrets");
    refused(&mut superuser, &register, "its file can't be read: no such file or directory");
    app.cluster().write_file("secrets/of stub", "first\n");
    superuser.run(&register);
    app.register("one", &one_with_rpc());
    let _plain = app.worker_named("plain", |_: &Call| force_complete(json!(null)));
    app.register_with("plain", "plain", &one_step());
    db.start("p", "one").go();
    db.completes("p");
    is_signed_with(&mut superuser, &worker, "p", &["first"]);

    // Another one counts from the next reload on.
    app.cluster().write_file("secrets/of stub", "second\r\n");
    superuser.run("SELECT pg_reload_conf()");
    let mut number = 0;
    wait_until("the other one signs", 20, || {
        number += 1;
        let id = format!("n{number}");
        db.start(&id, "one").go();
        db.completes(&id);
        let call = worker.calls().pop().expect("a call");
        call.headers["webhook-signature"] == signature(&mut superuser, "second", &call)
    });
    wait_until("also that of RPCs", 20, || {
        db.rpc("p", "ping", json!(null));
        let call = worker.calls().pop().expect("a call");
        call.headers["webhook-signature"] == signature(&mut superuser, "second", &call)
    });

    // The secret no longer exists: no request is sent, and no attempt is spent.
    shell(&mut superuser, "rm \"secrets/of stub\"");
    superuser.run("SELECT pg_reload_conf()");
    wait_until("the engine knows", 20, || app.cluster().log().contains("no calls are made to worker \"stub\""));
    let calls = worker.count(|_| true);
    db.start("q", "one").go();
    wait_until("RPCs are refused", 20, || match db.try_run("SELECT xdb.invoke_rpc('p', 'ping')") {
        Ok(()) => false,
        Err(error) => {
            error.code == codes::WORKER_FAILED && error.detail.contains("The worker's secret can't be used: its file")
        }
    });
    let why = "\"stub\" (its file can't be read: no such file or directory)";
    assert!(superuser.text(REASON).contains(why), "{}", superuser.text(REASON));
    assert!(superuser.text("SELECT last_error FROM xdb.status()").contains("no calls are made to worker \"stub\""));
    // Other workers are called, and calls that move to another worker now are not held.
    db.start("plain", "plain").go();
    db.completes("plain");
    app.register("moves", &one_step());
    db.start("moves", "moves").go();
    app.register_with("plain", "moves", &one_step());
    db.completes("moves");
    assert!(worker.count(|_| true) <= calls + 1, "an RPC of the session before it knew, at most");
    assert_eq!(worker.count(|call| call.process_id() == "q"), 0);
    assert_eq!(views::failures(&mut db, "q"), Vec::<Value>::new());

    // The secret exists again. No notification is needed.
    app.cluster().write_file("secrets/of stub", "third");
    db.completes("q");
    is_signed_with(&mut superuser, &worker, "q", &["third"]);
    assert_eq!(worker.count(|call| call.attempt() == 1 && call.process_id() == "q"), 1);
    db.rpc("p", "ping", json!(null));
    is_signed_with(&mut superuser, &worker, "p", &["third"]);
    assert_eq!(superuser.text(REASON), "");
    app.done(&[]);
}

#[test]
fn a_file_is_one_of_the_directory_and_small() {
    let (app, worker) = application("secret_names");
    let mut superuser = app.superuser();
    shell(
        &mut superuser,
        "mkdir -p secrets/..of_a_day/inner secrets/directory; cd secrets; echo kept > ..of_a_day/kept;
         ln -s ..of_a_day ..data; ln -s ..data/kept link; ln -s ../PG_VERSION out; ln -s /etc/hostname absolute; ln -s loop loop;
         mkfifo pipe; : > empty; printf '\\n' > line; head -c 5000 /dev/zero | tr '\\0' x > large; printf '\\377' > binary;
         printf 'whsec_***' > broken",
    );
    app.cluster().set("xdb.secrets_directory", "secrets");
    for (secret, why) in [
        ("file:out", "its file is outside of the directory"),
        ("file:absolute", "its file is outside of the directory"),
        ("file:loop", "its file can't be read"),
        ("file:pipe", "its file can't be read: it is not an ordinary file"),
        ("file:directory", "its file can't be read: it is not an ordinary file"),
        ("file:empty", "its file is empty"),
        ("file:line", "its file is empty"),
        ("file:large", "its file is longer than 4096 bytes"),
        ("file:binary", "its file is not text"),
        ("file:broken", "not base64"),
        ("file:", "must be followed by the name of a file"),
        ("file:..", "must be followed by the name of a file"),
        ("file:..data", "must be followed by the name of a file"),
        ("file:../PG_VERSION", "must be followed by the name of a file"),
        ("file:directory/x", "must be followed by the name of a file"),
        ("file:/etc/hostname", "must be followed by the name of a file"),
        ("env:", "must be followed by the name of an environment variable"),
        ("env:A=B", "must be followed by the name of an environment variable"),
        ("env:XDB_IS_NOT_SET", "its environment variable is not set"),
    ] {
        let error = superuser.refused(codes::INVALID_ARGUMENT, &registration(&worker, secret));
        assert!(error.message.contains(why), "{secret}: {error:?}");
    }
    // As orchestrators have them: a link to what they put in the place of the old one.
    superuser.run(&registration(&worker, "file:link"));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("p", "one").go();
    db.completes("p");
    is_signed_with(&mut superuser, &worker, "p", &["kept"]);
    app.done(&[]);
}

#[test]
fn with_two_secrets_calls_carry_the_signatures_of_both() {
    let app = App::new("secret_rotation");
    let worker = Worker::start(answer);
    let (mut superuser, mut db) = (app.superuser(), app.db());
    superuser.run(&registration(&worker, "old"));
    app.register("one", &one_with_rpc());
    let mut called = |process: &str, secrets: &[&str]| {
        db.start(process, "one").go();
        db.completes(process);
        is_signed_with(&mut superuser, &worker, process, secrets);
        db.rpc(process, "ping", json!(null));
        is_signed_with(&mut superuser, &worker, process, secrets);
    };
    called("before", &["old"]);
    let mut set = app.superuser();
    set.run("SELECT xdb.set_worker_secret('stub', 'old', 'new')");
    called("meanwhile", &["old", "new"]);
    set.run("SELECT xdb.set_worker_secret('stub', 'new')");
    called("after", &["new"]);
    // The value of a variable in the server's environment, unchanged.
    set.run("CREATE TEMP TABLE environment (value text); COPY environment FROM PROGRAM 'printenv PATH'");
    let path = set.text("SELECT value FROM environment");
    set.run("SELECT xdb.set_worker_secret('stub', 'env:PATH', 'new')");
    called("environment", &[&path, "new"]);
    // One that is registered again has one secret, or none.
    set.run(&registration(&worker, "other"));
    called("again", &["other"]);
    set.run("SELECT xdb.set_worker_secret('stub', NULL)");
    db.start("unsigned", "one").go();
    db.completes("unsigned");
    let call = worker.calls().pop().expect("a call");
    assert!(!call.headers.contains_key("webhook-signature") && !call.headers.contains_key("webhook-id"), "{call:?}");
    assert_eq!(set.count("xdb.worker_secret"), 0);
    app.done(&[]);
}

#[test]
fn only_superusers_name_and_read_secrets_of_the_server() {
    let app = App::new("secret_rights");
    let worker = Worker::start(answer);
    let (mut superuser, mut boss) = (app.superuser(), app.session("boss"));
    boss.run(&registration(&worker, "plain"));
    // The error does not reveal whether such a variable exists either.
    for name in ["env:PATH", "env:XDB_IS_NOT_SET", "file:any"] {
        for sql in [registration(&worker, name), format!("SELECT xdb.set_worker_secret('stub', 'plain', '{name}')")] {
            let error = boss.refused(codes::INSUFFICIENT_PRIVILEGE, &sql);
            assert_eq!(error.message, "permission denied to refer to a secret");
        }
    }
    // The owner of the worker keeps a secret that a superuser has set.
    superuser.run("SELECT xdb.set_worker_secret('stub', 'env:PATH')");
    boss.run(&registration(&worker, "env:PATH"));
    boss.run("SELECT xdb.set_worker_secret('stub', 'env:PATH', 'mine')");
    boss.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.set_worker_secret('stub', 'env:HOME')");
    boss.run("SELECT xdb.set_worker_secret('stub', 'mine')");
    boss.refused(codes::INSUFFICIENT_PRIVILEGE, &registration(&worker, "env:PATH"));
    // A role that may read all data finds no secret either.
    superuser.run("GRANT pg_read_all_data TO boss");
    assert_eq!((boss.count("xdb.worker_secret"), superuser.count("xdb.worker_secret")), (0, 1));
    superuser.run("REVOKE pg_read_all_data FROM boss");
    for role in ["app", "boss"] {
        app.session(role).refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT count(*) FROM xdb.worker_secret");
    }
    boss.run("SELECT xdb.unregister_worker('stub')");
    assert_eq!(superuser.count("xdb.worker_secret"), 0);
    app.done(&[]);
}

#[test]
fn a_dump_has_references_and_no_secrets() {
    let (app, worker) = application("secret_dumped");
    let (cluster, mut superuser) = (app.cluster(), app.superuser());
    superuser.run(&registration(&worker, "in the database"));
    superuser.run("SELECT xdb.set_worker_secret('stub', 'in the database', 'env:PATH')");
    app.register("one", &one_with_rpc());
    let dump = cluster.dump("secret_dumped", &[]);
    cluster.restore("secret_copy", &dump);

    let stored = "SELECT coalesce(string_agg(position || source, ',' ORDER BY position), '') FROM xdb.worker_secret";
    let mut copy = cluster.connect("secret_copy", "postgres");
    assert_eq!(copy.text(stored), "2env");
    // Of two that are wanted one is missing: nothing is signed with less.
    let why = "\"stub\" (the dump that this database was restored from does not have it";
    assert!(copy.text(REASON).contains(why), "{}", copy.text(REASON));
    copy.run("SELECT xdb.adopt()");
    let mut db = cluster.connect("secret_copy", "app");
    db.start("p", "one").go();
    let error = db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'ping')");
    assert!(error.detail.contains("the dump that this database was restored from does not have it"), "{error:?}");
    wait_until("the engine runs", 20, || copy.text("SELECT state FROM xdb.status()") == "running");
    assert!(copy.text(REASON).contains(why), "{}", copy.text(REASON));
    assert_eq!(worker.count(|_| true), 0);
    copy.run("SELECT xdb.set_worker_secret('stub', 'set again')");
    db.completes("p");
    is_signed_with(&mut superuser, &worker, "p", &["set again"]);
    assert_eq!(copy.text(REASON), "");
    drop((db, copy));
    app.done(&[]);
}
