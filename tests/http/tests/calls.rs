//! Calls of the reactor to workers of every kind: good, slow, broken and hostile ones.

use std::io::Read;
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xdb_http_tests::http::{sign, validate_headers, validate_url};
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, eventually, failure};
use xdb_http_tests::stub::{Connection, Stub, closed_port};
use xdb_http_tests::transport::{CallOutcome, FailureKind, Request};

/// A timeout for calls that must time out.
const SHORT: Duration = Duration::from_millis(400);
/// Far longer than SHORT, far shorter than a stub's wait.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn an_answer_comes_back_with_its_status_and_body() {
    for status in [200, 201, 400, 404, 500, 503] {
        let stub = Stub::answering(status, r#"{"detail":"x"}"#);
        let finished = Rig::new(1).run(call(42, stub.url("/"), PATIENCE));
        assert_eq!(finished.tag, 42);
        assert_eq!(finished.outcome, answer(status, r#"{"detail":"x"}"#));
    }
}

#[test]
fn a_retry_time_is_in_seconds_or_a_date() {
    for (header, expected) in [
        ("Retry-After: 7", Some(7)),
        ("retry-after:  60 ", Some(60)),
        ("Retry-After: 0", Some(0)),
        ("Retry-After: +7", None),
        ("Retry-After: 1.5", None),
        ("Retry-After:", None),
        ("Retry-After: 99999999999999999999", None),
        ("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", None),
        ("Date: Fri, 31 Dec 1999 23:59:52 GMT\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", Some(7)),
        ("Retry-After: Sat, 01 Jan 2000 00:01:00 GMT\r\nDate: Fri, 31 Dec 1999 23:59:59 GMT", Some(61)),
        ("Date: Fri, 31 Dec 1999 23:59:59 GMT\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", Some(1)),
        ("Date: Fri, 31 Dec 1999 23:59:59 GMT\r\nRetry-After: soon", None),
        ("X-Retry-After: 7", None),
    ] {
        let stub = Stub::start(move |mut connection, _| {
            while connection.request().is_some() {
                connection.send(&format!("HTTP/1.1 503 X\r\n{header}\r\nContent-Length: 0\r\n\r\n"));
            }
        });
        match Rig::new(1).get(stub.url("/")) {
            CallOutcome::Answer { status: 503, retry_after, .. } => assert_eq!(retry_after, expected, "{header}"),
            other => panic!("{header}: {other:?}"),
        }
    }
}

/// No request accepts a compressed answer. If a proxy compresses all the same, the failure names the encoding, and not
/// the bytes that are no JSON.
#[test]
fn a_compressed_answer_is_refused_by_its_name() {
    for (status, header, expected) in [
        (200, "Content-Encoding: gzip", Some("Content-Encoding gzip")),
        (200, "content-encoding: br", Some("Content-Encoding br")),
        (200, "Content-Encoding: gzip, deflate", Some("Content-Encoding gzip, deflate")),
        (200, "Content-Encoding: identity", None),
        (200, "Content-Encoding:", None),
        (200, "Vary: Content-Encoding", None),
        (500, "Content-Encoding: gzip", Some("a body with Content-Encoding gzip")),
    ] {
        let stub = Stub::start(move |mut connection, _| {
            while connection.request().is_some() {
                connection.send(&format!("HTTP/1.1 {status} X\r\n{header}\r\nContent-Length: 2\r\n\r\n{{}}"));
            }
        });
        match (Rig::new(1).get(stub.url("/")), expected) {
            (CallOutcome::Failed { kind: FailureKind::Encoded, message }, Some(words)) => {
                assert!(message.contains(words) && message.contains("must not compress"), "{header}: {message}");
            }
            (CallOutcome::Answer { status: 500, body, .. }, Some(words)) => {
                assert_eq!(String::from_utf8_lossy(&body), words)
            }
            (outcome, None) => assert_eq!(outcome, answer(200, "{}"), "{header}"),
            (outcome, _) => panic!("{status} {header}: {outcome:?}"),
        }
    }
}

#[test]
fn the_worker_gets_the_submitted_request() {
    let (sender, requests) = channel();
    let sender = Mutex::new(sender);
    let stub = Stub::start(move |mut connection, _| {
        while let Some(request) = connection.request() {
            sender.lock().unwrap().send(request).unwrap();
            connection.answer(200, "{}");
        }
    });
    let rig = Rig::new(1);
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(100_000)).into_bytes();
    let request = Request {
        headers: vec![
            ("Idempotency-Key".to_owned(), "key-1".to_owned()),
            ("Authorization".to_owned(), "Bearer token".to_owned()),
        ],
        body: body.clone(),
        secrets: Arc::from(["whsec_a2V5".to_owned()]),
        ..call(1, stub.url("/api/v1/x"), PATIENCE)
    };
    assert_eq!(rig.run(request.clone()).outcome, answer(200, "{}"));
    let seen = requests.recv_timeout(PATIENCE).unwrap();
    assert!(seen.head.starts_with("POST /api/v1/x HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.body, body);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("user-agent"), Some(concat!("xdb/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(seen.header("authorization"), Some("Bearer token"));
    assert_eq!(seen.header("idempotency-key"), Some("key-1"));
    let timestamp = seen.header("webhook-timestamp").unwrap().parse().unwrap();
    let signed = sign("whsec_a2V5", "key-1", timestamp, &body).unwrap();
    assert_eq!(seen.header("webhook-id"), Some("key-1"));
    assert_eq!(seen.header("webhook-signature"), Some(signed.signature.as_str()));

    // With two secrets, in their order: a worker that knows one of them finds its signature.
    let both: Arc<[String]> = Arc::from(["whsec_a2V5".to_owned(), "other".to_owned()]);
    rig.run(Request { secrets: both.clone(), ..request.clone() });
    let seen = requests.recv_timeout(PATIENCE).unwrap();
    let timestamp = seen.header("webhook-timestamp").unwrap().parse().unwrap();
    let signatures = both.iter().map(|secret| sign(secret, "key-1", timestamp, &body).unwrap().signature);
    assert_eq!(seen.header("webhook-signature"), Some(signatures.collect::<Vec<_>>().join(" ").as_str()));

    rig.run(Request { secrets: Arc::from([]), ..request });
    assert_eq!(requests.recv_timeout(PATIENCE).unwrap().header("webhook-id"), None);
}

#[test]
fn a_refused_connection_names_the_worker() {
    let address = closed_port();
    let message = failure(Rig::new(1).get(format!("http://{address}/")), FailureKind::Connect);
    assert_eq!(message, format!("could not connect to {address}: connection refused"));

    let url = format!("http://localhost:{}/", address.port());
    let message = failure(Rig::new(1).get(url), FailureKind::Connect);
    assert!(message.contains(&format!("localhost:{} (", address.port())), "{message}");
}

#[test]
fn a_worker_that_hangs_runs_out_of_time() {
    let stub = Stub::start(|mut connection, _| connection.hang());
    let begin = Instant::now();
    let finished = Rig::new(1).run(call(0, stub.url("/"), SHORT));
    assert_eq!(
        failure(finished.outcome, FailureKind::Timeout),
        format!("timed out after 400 ms while waiting for the answer of {}", stub.address)
    );
    assert!(begin.elapsed() >= SHORT && finished.elapsed < SOON);
}

#[test]
fn a_worker_that_drips_runs_out_of_time() {
    let tick = Duration::from_millis(30);
    let body = Stub::start(move |mut connection, _| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        while connection.dawdle(tick) && connection.send("x") {}
    });
    let head = Stub::start(move |mut connection, _| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nX-Long: ");
        while connection.dawdle(tick) && connection.send("x") {}
    });
    let chunks = Stub::start(move |mut connection, _| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while connection.dawdle(tick) && connection.send("1\r\nx\r\n") {}
    });
    for stub in [body, head, chunks] {
        let begin = Instant::now();
        let finished = Rig::new(1).run(call(0, stub.url("/"), SHORT));
        let message = failure(finished.outcome, FailureKind::Timeout);
        assert!(message.contains("while receiving the answer"), "{message}");
        assert!(begin.elapsed() < SOON);
    }
}

/// Every read of the worker makes some room, so no single write waits for long.
#[test]
fn a_worker_that_reads_slowly_runs_out_of_time() {
    let stub = Stub::start(|mut connection, _| {
        let mut some = [0; 20_000];
        let pause = Duration::from_millis(20);
        connection.stream.set_read_timeout(Some(pause)).unwrap();
        let (_never, pacer) = channel::<()>();
        while !matches!(connection.stream.read(&mut some), Ok(0)) {
            let _ = pacer.recv_timeout(pause);
        }
    });
    let begin = Instant::now();
    let finished = Rig::new(1).run(Request { body: vec![b' '; 64 << 20], ..call(0, stub.url("/"), SHORT) });
    let message = failure(finished.outcome, FailureKind::Timeout);
    assert!(message.contains("while sending the request"), "{message}");
    assert!(begin.elapsed() < SOON);
}

/// For instance a proxy that finds the request too large. Its answer counts, although it closes the connection before
/// the rest of the request.
#[test]
fn an_answer_may_come_before_the_request_was_sent() {
    let text = "HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\n\r\n413";
    let serve = |text: &'static str, and_then: fn(Connection) -> Option<Connection>| {
        let kept = Mutex::new(Vec::new());
        Stub::start(move |mut connection, _| {
            connection.stream.read_exact(&mut [0; 20]).unwrap();
            assert!(connection.send(text));
            kept.lock().unwrap().extend(and_then(connection));
        })
    };
    // It reads no more.
    let waits = serve(text, Some);
    // It closes with the request unread, which is a reset.
    let closes = serve(text, |_| None);
    // It ends its own side in good order, which ends its answer.
    let ends = serve("HTTP/1.1 413 Too Much\r\n\r\n413", |connection| {
        connection.stream.shutdown(Shutdown::Write).unwrap();
        Some(connection)
    });
    for (number, stub) in [waits, closes, ends].into_iter().enumerate() {
        let rig = Rig::new(1);
        let request = Request { body: vec![b' '; 64 << 20], ..call(0, stub.url("/"), PATIENCE) };
        assert_eq!(rig.run(request).outcome, answer(413, "413"), "{number}");
        eventually("the connection is not kept", || rig.reactor.connections().open == 0);
    }
}

/// A worker that begins to answer still gets the rest of the request.
#[test]
fn an_answer_that_has_begun_does_not_stop_the_request() {
    const SIZE: usize = 16 << 20;
    for early in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\nConte"] {
        let stub = Stub::start(move |mut connection, _| {
            let rest = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
            connection.send(early);
            while connection.request().is_some_and(|request| request.body.len() == SIZE) {
                connection.send(if early.contains("200") { "nt-Length: 2\r\n\r\n{}" } else { rest });
            }
        });
        let request = Request { body: vec![b' '; SIZE], ..call(0, stub.url("/"), PATIENCE) };
        let rig = Rig::new(1);
        assert_eq!(rig.run(request).outcome, answer(200, "{}"));
        assert_eq!(rig.reactor.connections().open, 1);
    }
}

/// After a failed write a reset looks like an orderly end.
#[test]
fn a_reset_while_the_request_is_sent_is_no_end_of_an_answer() {
    let stub = Stub::start(|mut connection, _| {
        connection.stream.read_exact(&mut [0; 20]).unwrap();
        connection.send("HTTP/1.1 413 Too Much\r\n\r\nhal");
    });
    for _ in 0..20 {
        let request = Request { body: vec![b' '; 64 << 20], ..call(0, stub.url("/"), PATIENCE) };
        let message = failure(Rig::new(1).run(request).outcome, FailureKind::Transport);
        assert!(message.contains("closed the connection"), "{message}");
    }
}

#[test]
fn a_body_is_cut_at_the_limit() {
    const HUGE: usize = 50 << 20;
    let announced = Stub::start(|mut connection, _| {
        connection.request();
        connection.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n"));
        connection.hang();
    });
    let (sender, sent) = channel();
    let sender = Mutex::new(sender);
    let chunked = Stub::start(move |mut connection, _| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        let mut bytes = 0;
        while bytes < HUGE && connection.send(&chunk) {
            bytes += chunk.len();
        }
        sender.lock().unwrap().send(bytes).unwrap();
    });
    for stub in [&announced, &chunked] {
        let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::TooLarge);
        assert_eq!(message, format!("the answer of {} is larger than 1048576 bytes", stub.address));
    }
    assert!(sent.recv_timeout(PATIENCE).unwrap() < HUGE);
}

#[test]
fn a_body_that_just_fits_fits() {
    let stub = Stub::start(|mut connection, _| {
        while connection.request().is_some() {
            connection.answer(200, "12345");
        }
    });
    let rig = Rig::new(1);
    rig.reactor.set_max_response_bytes(5);
    assert_eq!(rig.get(stub.url("/")), answer(200, "12345"));
    assert_eq!(rig.get(stub.url("/")), answer(200, "12345"));
    assert_eq!(stub.accepted(), 1);
    rig.reactor.set_max_response_bytes(4);
    failure(rig.get(stub.url("/")), FailureKind::TooLarge);
}

#[test]
fn a_truncated_response_is_no_answer() {
    let endings: [(&str, &str); 4] = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "in the middle of its answer"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "in the middle of its answer"),
        ("HTTP/1.1 200 OK\r\nContent-Le", "in the middle of its answer"),
        ("", "without an answer"),
    ];
    for (text, expected) in endings {
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(text);
        });
        let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::Transport);
        assert_eq!(message, format!("{} closed the connection {expected}", stub.address));
        assert_eq!(stub.accepted(), 1);
    }
}

#[test]
fn a_reset_is_no_end_of_a_body() {
    for head in ["", "Content-Length: 5\r\n"] {
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(&format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{head}\r\n{{}}"));
            // The reset would overtake what was sent before the caller could read it.
            connection.dawdle(Duration::from_millis(100));
            connection.reset();
        });
        let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::Transport);
        assert!(message.ends_with("in the middle of its answer"), "{message}");
    }
    let closed = Stub::start(|mut connection, _| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}");
    });
    assert_eq!(Rig::new(1).get(closed.url("/")), answer(200, "{}"));
}

#[test]
fn redirects_are_answers() {
    let target = Stub::answering(200, "{}");
    let location = target.url("/");
    let stub = Stub::start(move |mut connection, number| {
        let status = [301, 302, 303, 307, 308][number];
        connection.request();
        let head = format!("HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\nbody");
        connection.send(&head);
    });
    let rig = Rig::new(1);
    for status in [301, 302, 303, 307, 308] {
        assert_eq!(rig.get(stub.url("/")), answer(status, "body"));
    }
    assert_eq!(target.accepted(), 0);
}

#[test]
fn a_response_that_is_not_http_is_reported() {
    for text in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "\0\u{1}\u{2}\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(text);
            connection.hang();
        });
        let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::Transport);
        assert!(message.starts_with(&format!("the answer of {} is not HTTP", stub.address)), "{message}");
    }
}

#[test]
fn odd_but_valid_answers_are_answers() {
    let cases = [
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, "{}"),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}"),
        ("HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}", 200, "{}"),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}"),
    ];
    for (text, status, body) in cases {
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(text);
            connection.hang();
        });
        assert_eq!(Rig::new(1).get(stub.url("/")), answer(status, body), "{text}");
    }
}

#[test]
fn headers_of_an_answer_have_a_limit() {
    let stub = Stub::start(|mut connection, _| {
        connection.request();
        connection.send(&format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)));
    });
    let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::TooLarge);
    assert_eq!(message, format!("the answer of {} has headers larger than 16384 bytes", stub.address));
}

/// The bytes between chunks and after them are limited, like the headers.
#[test]
fn a_line_between_chunks_has_an_end() {
    const HUGE: usize = 64 << 20;
    for begin in ["1\rx", "", "1\r\nx", "1\r\nx\r\n1;", "1\r\nx\r\n0\r\nTrailer: "] {
        let (sender, sent) = channel();
        let sender = Mutex::new(sender);
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(&format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{begin}"));
            let text = "x".repeat(0x10000);
            let mut bytes = 0;
            while bytes < HUGE && connection.send(&text) {
                bytes += text.len();
            }
            sender.lock().unwrap().send(bytes).unwrap();
        });
        let message = failure(Rig::new(1).get(stub.url("/")), FailureKind::TooLarge);
        assert_eq!(message, format!("the answer of {} has headers larger than 16384 bytes", stub.address), "{begin:?}");
        assert!(sent.recv_timeout(PATIENCE).unwrap() < HUGE);
    }
}

#[test]
fn tls_with_a_worker_that_has_none_fails() {
    let stub = Stub::start(|mut connection, _| {
        connection.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        connection.hang();
    });
    let message = failure(Rig::new(1).get(format!("https://{}/", stub.address)), FailureKind::Transport);
    assert!(message.contains("could not agree on TLS"), "{message}");
    let silent = Stub::start(|mut connection, _| connection.hang());
    let finished = Rig::new(1).run(call(0, format!("https://{}/", silent.address), SHORT));
    let message = failure(finished.outcome, FailureKind::ConnectTimeout);
    assert!(message.contains("while agreeing on TLS with"), "{message}");
}

#[test]
fn impossible_requests_are_reported() {
    let rig = Rig::new(1);
    let stub = Stub::answering(200, "{}");
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    for headers in [
        header("Bad Name", "hidden"),
        header("", "hidden"),
        header("X", "hidden\r\nEvil: 1"),
        header("X", "hidden\0"),
        header("Content-Length", "1"),
        header("transfer-encoding", "chunked"),
        header("Host", "hidden.example"),
        header("Webhook-Signature", "hidden"),
        header("X", &"hidden".repeat(10_000)),
    ] {
        let message = validate_headers(&headers).unwrap_err();
        let request = call(0, stub.url("/"), PATIENCE);
        let outcome = rig.run(Request { headers, ..request }).outcome;
        assert_eq!(failure(outcome, FailureKind::Invalid), message);
        assert!(!message.contains("hidden"), "{message}");
    }
    for secret in ["whsec_*hidden*", ""] {
        let request = call(0, stub.url("/"), PATIENCE);
        for secrets in [vec![secret.to_owned()], vec!["good".to_owned(), secret.to_owned()]] {
            let outcome = rig.run(Request { secrets: secrets.into(), ..request.clone() }).outcome;
            assert!(!failure(outcome, FailureKind::Invalid).contains("hidden"));
        }
    }
    let secrets = Arc::from(["key".to_owned()]);
    let unnamed = Request { headers: Vec::new(), secrets, ..call(0, stub.url("/"), PATIENCE) };
    failure(rig.run(unnamed).outcome, FailureKind::Invalid);
    failure(rig.get("http://user:hidden@localhost/"), FailureKind::Invalid);
    assert_eq!(stub.accepted(), 0);
}

/// Every URL that can be registered can be called.
#[test]
fn the_longest_url_can_be_called() {
    let stub = Stub::answering(200, "{}");
    let base = stub.url("/");
    let longest = format!("{base}{}", "x".repeat(8192 - base.len()));
    validate_url(&longest).unwrap();
    let path = "/api/v1/xdb/worker/async-state/wait-until";
    assert_eq!(Rig::new(1).get(longest.clone() + path), answer(200, "{}"));
    assert_eq!(validate_url(&(longest + "x")).unwrap_err(), "a worker URL has at most 8192 characters");
}

#[test]
fn extreme_timeouts_are_survived() {
    let stub = Stub::answering(200, "{}");
    let rig = Rig::new(1);
    let endless = rig.run(call(0, stub.url("/"), Duration::MAX));
    assert_eq!(endless.outcome, answer(200, "{}"));
    let outcome: CallOutcome = rig.run(call(0, stub.url("/"), Duration::ZERO)).outcome;
    failure(outcome, FailureKind::Timeout);
}
