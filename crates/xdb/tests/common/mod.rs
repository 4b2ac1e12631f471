//! Runs the program `xdb` against a server of the tests, and compares what it prints with golden files.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use xdb_cluster_tests::prelude::*;

/// What the program has printed, and its exit code.
pub struct Printed {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The program, with the environment of a session of this role and without any other variable of libpq.
pub fn program(cluster: &Cluster, database: &str, role: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdb"));
    for (name, _) in std::env::vars() {
        if name.starts_with("PG") {
            command.env_remove(name);
        }
    }
    command
        .env("PGHOST", cluster.socket_directory())
        .env("PGPORT", "5432")
        .env("PGDATABASE", database)
        .env("PGUSER", role);
    command
}

pub fn run(mut command: Command) -> Printed {
    let Output { status, stdout, stderr } = command.output().expect("the program was built");
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    Printed { code: status.code().expect("it was not killed"), out: text(stdout), err: text(stderr) }
}

/// `xdb` with these arguments, as a role in the application's database.
pub fn xdb(app: &App, role: &str, arguments: &[&str]) -> Printed {
    let mut command = program(app.cluster(), app.database(), role);
    command.args(arguments);
    run(command)
}

/// An application whose running processes `40` and `400` have results of that many digits.
pub fn with_long_numbers(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "box", 1)]).into(),
        (_, "Split") => Answer::deciding(json!({"nextStates": [{"stateId": "Number"}, {"stateId": "Wait"}]})).into(),
        _ => {
            let number = digits(call.process_id());
            let close = format!(r#"{{"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": {number}}}"#);
            Reply::Raw(200, format!(r#"{{"stateDecision": {{"threadCloseDecision": {close}}}}}"#).into_bytes())
        }
    });
    app.register("numbers", &Definition::starting_with("Split").step("Split").step("Number").waiting_step("Wait"));
    let mut db = app.db();
    for id in ["40", "400"] {
        db.start(id, "numbers").go();
    }
    wait_until("both have a result, and wait", 20, || {
        db.count("xdb.processes WHERE jsonb_array_length(results) = 1") == 2 && db.count("xdb.waits") == 2
    });
    (app, worker)
}

/// The result of a process of [`with_long_numbers`].
pub fn digits(process_id: &str) -> String {
    "1234567890".repeat(process_id.parse::<usize>().expect("a number") / 10)
}

/// Gives the schema another version, as an update does, and notifies all sessions.
pub fn set_version(app: &App, version: &str) {
    app.superuser().run(&format!(
        "BEGIN; UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'xdb';
         ALTER EXTENSION xdb UPDATE TO '{version}'; COMMIT"
    ));
}

/// Compares a text with a golden file of `tests/golden`. With ACCEPT=1 the file is written.
pub fn is_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("ACCEPT").is_some() {
        std::fs::write(&path, text).expect("a file of ours");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "\n{} differs; ACCEPT=1 writes it:\n{text}", path.display());
}

/// Replaces what differs from run to run: lengths of time, moments, ids of executions, numbers of databases and systems.
pub fn normal(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut words: Vec<String> = Vec::new();
        let mut rest: Vec<&str> = line.split(' ').rev().collect();
        while let Some(word) = rest.pop() {
            let bare = |word: &str| word.trim_matches(|c: char| "(),.:".contains(c)).to_owned();
            let is_unit = rest.last().is_some_and(|next| ["s", "min", "h", "d"].contains(&&*bare(next)));
            if word.parse::<u64>().is_ok() && is_unit {
                let unit = rest.pop().expect("just seen");
                let end: String = unit.chars().skip_while(|c| c.is_ascii_alphabetic()).collect();
                match words.last() {
                    Some(last) if last == "<length>" => words.pop(),
                    _ => None,
                };
                words.push(format!("<length>{end}"));
            } else if is_day(&bare(word)) && rest.len() >= 2 {
                rest.pop();
                let zone = rest.pop().expect("just counted");
                let open = if word.starts_with('(') { "(" } else { "" };
                words.push(format!("{open}<moment>{}", zone.trim_start_matches("UTC")));
            } else if words.last().is_some_and(|last| ["oid", "system"].contains(&&**last)) {
                words.push(format!("<number>{}", word.trim_start_matches(|c: char| c.is_ascii_digit())));
            } else if bare(word).len() == 36 && bare(word).matches('-').count() == 4 {
                words.push(word.replace(&bare(word), "<execution>"));
            } else {
                words.push(word.to_owned());
            }
        }
        words.join(" ")
    });
    lines.map(|line| line + "\n").collect()
}

fn is_day(word: &str) -> bool {
    word.len() == 10
        && word
            .bytes()
            .enumerate()
            .all(|(at, byte)| if [4, 7].contains(&at) { byte == b'-' } else { byte.is_ascii_digit() })
}

/// A running `xdb metrics` or `xdb console`. It ends with the test.
pub struct Serving {
    child: Child,
    /// The address that the program has printed.
    pub url: String,
}

impl Serving {
    pub fn start(mut command: Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program was built");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut url).expect("it prints its address");
        Serving { child, url: url.trim().to_owned() }
    }

    /// Host and port.
    pub fn authority(&self) -> &str {
        let rest = self.url.strip_prefix("http://").expect("an address");
        rest.split('/').next().expect("it has a host")
    }

    /// Sends a request with these lines of a head and this body, without any other header.
    pub fn send(&self, head: &[&str], body: &str) -> Answered {
        let mut stream = TcpStream::connect(self.authority()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        let length = format!("Content-Length: {}", body.len());
        let lines: Vec<_> = head.iter().copied().chain([&*length, "Connection: close"]).collect();
        stream.write_all(format!("{}\r\n\r\n{body}", lines.join("\r\n")).as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in time");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("it has a status");
        Answered { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Ends it. Returns its messages.
    pub fn end(mut self) -> String {
        let mut messages = String::new();
        self.child.kill().expect("it runs");
        self.child.stderr.take().expect("it is piped").read_to_string(&mut messages).expect("text");
        messages
    }

    pub fn get(&self, path: &str) -> Answered {
        self.send(&[&format!("GET {path} HTTP/1.1"), &format!("Host: {}", self.authority())], "")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer over HTTP.
pub struct Answered {
    pub status: u16,
    /// In small letters.
    pub head: String,
    pub body: String,
}

impl Answered {
    /// A header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}
