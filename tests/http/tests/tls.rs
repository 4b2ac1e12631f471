//! Workers behind TLS: which authorities the reactor trusts, and that data over TLS is complete.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use xdb_http_tests::http::{Authorities, Means};
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, eventually, failure, local};
use xdb_http_tests::stub::{Request, Stub};
use xdb_http_tests::transport::{CallOutcome, FailureKind};

/// An authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
    /// The authority's own certificate, as PEM.
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).expect("a root");
        let lines = BASE64_STANDARD.encode(certificate.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n");
        Authority { pem, issuer: Issuer::new(params, key), roots: Arc::new(roots) }
    }

    /// The server configuration of a worker with this name.
    fn certify(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).expect("they belong together"))
    }

    /// A reactor that trusts only this authority.
    fn rig(&self) -> Rig {
        Rig::with(local(), 4, Means { roots: self.roots.clone(), ..Means::system() })
    }
}

/// A worker behind TLS that sends back the body that it gets.
struct Echo {
    stub: Stub,
    requests: Arc<AtomicUsize>,
}

impl Echo {
    fn start(config: Arc<ServerConfig>) -> Echo {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let stub = Stub::start(move |connection, _| {
            let session = ServerConnection::new(config.clone()).expect("a session");
            let mut stream = StreamOwned::new(session, connection.stream);
            while let Some(request) = Request::read(&mut stream) {
                count.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
                // Errors because the other end has closed are ignored.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&request.body));
                let _ = stream.flush();
            }
        });
        Echo { stub, requests }
    }

    /// The URL with the name that most certificates of this file have.
    fn url(&self) -> String {
        format!("https://localhost:{}/", self.stub.address.port())
    }

    /// Checks that the worker is not trusted, and that it gets no request.
    fn is_refused(&self, rig: &Rig, why: &str) {
        let message = failure(rig.get(self.url()), FailureKind::Transport);
        assert!(message.contains("could not agree on TLS") && message.contains(why), "{message}");
        assert_eq!(self.requests.load(Ordering::SeqCst), 0, "a request was sent to it");
    }
}

#[test]
fn calls_and_answers_of_any_size_go_over_one_connection() {
    let authority = Authority::new();
    let echo = Echo::start(authority.certify("localhost", |_| {}));
    let rig = authority.rig();
    rig.reactor.set_max_response_bytes(16 << 20);
    // From what fits into a record of TLS to what fills every buffer on the way.
    for size in [2, 20_000, 1_000_000, 16 << 20] {
        let body: String = ('a'..='z').cycle().take(size).collect();
        let request = call(0, echo.url(), PATIENCE);
        let reply = rig.run(xdb_http_tests::transport::Request { body: body.clone().into_bytes(), ..request });
        assert!(reply.outcome == answer(200, &body), "{size} bytes did not come back");
    }
    assert_eq!((echo.stub.accepted(), echo.requests.load(Ordering::SeqCst)), (1, 4));
}

/// Writes byte by byte, so that nothing arrives in the pieces in which it was written.
struct Trickle(TcpStream);

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Trickle {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        thread::yield_now();
        self.0.write(&from[..from.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn tls_may_come_in_any_pieces() {
    let authority = Authority::new();
    let server = authority.certify("localhost", |_| {});
    let stub = Stub::start(move |connection, _| {
        connection.stream.set_nodelay(true).unwrap();
        let session = ServerConnection::new(server.clone()).expect("a session");
        let mut stream = StreamOwned::new(session, Trickle(connection.stream));
        while Request::read(&mut stream).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
            let _ = stream.flush();
        }
    });
    let url = format!("https://localhost:{}/", stub.address.port());
    // Little, and more than TLS would keep back if it were written too early.
    for size in [2, 100_000] {
        let request = xdb_http_tests::transport::Request { body: vec![b' '; size], ..call(0, &url, PATIENCE) };
        assert_eq!(authority.rig().run(request).outcome, answer(200, "{}"), "{size}");
    }
}

/// Messages of TLS itself come without an end, and without a byte of an answer.
#[test]
fn endless_tls_blocks_no_other_call() {
    let authority = Authority::new();
    let mut config = Arc::unwrap_or_clone(authority.certify("localhost", |_| {}));
    config.send_tls13_tickets = 300_000;
    // Each fills a record, as TLS bounds what it puts together of several ones.
    config.max_fragment_size = Some(86);
    let (config, sent, total) =
        (Arc::new(config), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let (is_sent, all) = (sent.clone(), total.clone());
    let flood = Stub::start(move |mut connection, _| {
        let mut session = ServerConnection::new(config.clone()).expect("a session");
        let mut tickets = Vec::new();
        while session.is_handshaking() {
            connection.stream.write_all(&std::mem::take(&mut tickets)).unwrap();
            session.read_tls(&mut connection.stream).unwrap();
            session.process_new_packets().unwrap();
            while session.wants_write() {
                session.write_tls(&mut tickets).unwrap();
            }
        }
        all.store(tickets.len(), Ordering::SeqCst);
        for some in tickets.chunks(0x10000) {
            if connection.stream.write_all(some).is_err() {
                return;
            }
            is_sent.fetch_add(some.len(), Ordering::SeqCst);
        }
        connection.hang();
    });
    let other = Stub::answering(200, "{}");
    let rig = authority.rig();
    rig.submit(call(1, format!("https://localhost:{}/", flood.address.port()), PATIENCE));
    eventually("it floods", || sent.load(Ordering::SeqCst) > 10 << 20);
    assert_eq!(rig.get(other.url("/")), answer(200, "{}"));
    let (sent, total) = (sent.load(Ordering::SeqCst), total.load(Ordering::SeqCst));
    assert!(sent < total, "nothing else was done until {sent} bytes were read");
}

#[test]
fn a_worker_is_known_by_its_address_too() {
    let authority = Authority::new();
    let echo = Echo::start(authority.certify("127.0.0.1", |_| {}));
    assert_eq!(authority.rig().get(format!("https://{}/", echo.stub.address)), answer(200, "{}"));
}

#[test]
fn a_worker_with_another_name_is_refused() {
    let authority = Authority::new();
    let rig = authority.rig();
    Echo::start(authority.certify("somebody.example", |_| {})).is_refused(&rig, "not valid for name");
    // Only that worker is refused.
    let echo = Echo::start(authority.certify("localhost", |_| {}));
    assert_eq!(rig.get(echo.url()), answer(200, "{}"));
}

#[test]
fn a_worker_with_an_untrusted_certificate_is_refused() {
    let echo = Echo::start(Authority::new().certify("localhost", |_| {}));
    // Two authorities that have the same name are still two.
    echo.is_refused(&Authority::new().rig(), "BadSignature");
    // The engine itself trusts the authorities that browsers trust.
    echo.is_refused(&Rig::new(1), "UnknownIssuer");
}

#[test]
fn a_certificate_of_the_past_is_refused() {
    let authority = Authority::new();
    let past = |params: &mut CertificateParams| params.not_after = date_time_ymd(2001, 1, 1);
    Echo::start(authority.certify("localhost", past)).is_refused(&authority.rig(), "expired");
}

#[test]
fn an_answer_that_is_cut_off_is_no_answer() {
    let authority = Authority::new();
    let server = authority.certify("localhost", |_| {});
    let stub = Stub::start(move |connection, _| {
        let session = ServerConnection::new(server.clone()).expect("a session");
        let mut stream = StreamOwned::new(session, connection.stream);
        if Request::read(&mut stream).is_some() {
            // Until the connection ends without the end of TLS: an attacker may have cut the answer.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"half\":");
            let _ = stream.flush();
        }
    });
    let outcome = authority.rig().get(format!("https://localhost:{}/", stub.address.port()));
    assert!(matches!(outcome, CallOutcome::Failed { kind: FailureKind::Transport, .. }), "{outcome:?}");
}

/// A file of one test. It is removed when dropped.
struct Bundle(std::path::PathBuf);

impl Bundle {
    fn new(name: &str, content: impl AsRef<[u8]>) -> Bundle {
        let path = std::env::temp_dir().join(format!("xdb-http-tests-{}-{name}.pem", std::process::id()));
        std::fs::write(&path, content).expect("a file of ours");
        Bundle(path)
    }

    fn read(&self) -> Result<Authorities, String> {
        Authorities::read(self.0.to_str().expect("a name in UTF-8"))
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn authorities_of_a_file_are_trusted_besides_the_built_in_ones() {
    let (always, one, other) = (Authority::new(), Authority::new(), Authority::new());
    let [first, second, third] = [&always, &one, &other].map(|who| Echo::start(who.certify("localhost", |_| {})));
    let rig = always.rig();
    second.is_refused(&rig, "BadSignature");
    let bundle = Bundle::new("two", format!("# One\n{}\n# and another\n{}", one.pem, other.pem));
    assert_eq!(rig.reactor.set_authorities(bundle.read()), Ok(()));
    for echo in [&first, &second, &third] {
        assert_eq!(rig.get(echo.url()), answer(200, "{}"));
    }
    // What was trusted a moment ago is not any more, though its connection is still there.
    let bundle = Bundle::new("other", &other.pem);
    assert_eq!(rig.reactor.set_authorities(bundle.read()), Ok(()));
    assert!(failure(rig.get(second.url()), FailureKind::Transport).contains("BadSignature"));
    assert_eq!(rig.get(third.url()), answer(200, "{}"));
    assert_eq!(rig.reactor.set_authorities(Authorities::read("")), Ok(()));
    assert!(failure(rig.get(third.url()), FailureKind::Transport).contains("BadSignature"));
    assert_eq!(rig.get(first.url()), answer(200, "{}"));
    assert_eq!([&first, &second, &third].map(|echo| echo.requests.load(Ordering::SeqCst)), [2, 1, 2]);
}

/// The worker can't repair the problem, so the call counts as one that was not tried.
#[test]
fn without_trusted_authorities_no_call_is_made_over_tls() {
    let authority = Authority::new();
    let echo = Echo::start(authority.certify("localhost", |_| {}));
    let (rig, plain) = (authority.rig(), Stub::answering(200, "{}"));
    assert_eq!(rig.get(echo.url()), answer(200, "{}"));
    let missing = Authorities::read("/nowhere/at/all.pem");
    let why = rig.reactor.set_authorities(missing).expect_err("there is no such file");
    assert_eq!(failure(rig.get(echo.url()), FailureKind::NotTried), why);
    assert_eq!(rig.get(plain.url("/")), answer(200, "{}"));
    assert_eq!(echo.requests.load(Ordering::SeqCst), 1);
    assert_eq!(rig.reactor.set_authorities(Authorities::read("")), Ok(()));
    assert_eq!(rig.get(echo.url()), answer(200, "{}"));
}

#[test]
fn an_invalid_file_of_authorities_is_refused_with_the_reason() {
    let authority = Authority::new();
    let broken = authority.pem.replace("MII", "M*I");
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let large = vec![b'#'; (4 << 20) + 1];
    let cases: [(&str, &[u8], &str); 6] = [
        ("empty", b"", "the file of xdb.ssl_ca_file has no certificate"),
        ("text", b"not a certificate", "the file of xdb.ssl_ca_file has no certificate"),
        ("bytes", &[0xff; 100], "the file of xdb.ssl_ca_file has no certificate"),
        ("broken", broken.as_bytes(), "the file of xdb.ssl_ca_file is not a PEM file of certificates: "),
        ("garbage", garbage.as_bytes(), "certificate 1 in the file of xdb.ssl_ca_file can't be used: "),
        ("large", &large, "the file of xdb.ssl_ca_file can't be read: it is larger than 4 MB"),
    ];
    for (name, content, expected) in cases {
        let message = Bundle::new(name, content).read().expect_err(name);
        assert!(message.starts_with(expected), "{name}: {message}");
    }
    let second = Bundle::new("second", format!("{}{garbage}", authority.pem)).read().expect_err("the second is none");
    assert!(second.starts_with("certificate 2 in"), "{second}");
    for (path, expected) in [
        ("/nowhere/at/all.pem", "the file of xdb.ssl_ca_file can't be read: no such file or directory"),
        ("/tmp", "the file of xdb.ssl_ca_file can't be read: it is not an ordinary file"),
        ("/dev/zero", "the file of xdb.ssl_ca_file can't be read: it is not an ordinary file"),
        ("a\0b", "the file of xdb.ssl_ca_file can't be read: "),
    ] {
        let message = Authorities::read(path).expect_err(path);
        assert!(message.starts_with(expected), "{path}: {message}");
    }
}
