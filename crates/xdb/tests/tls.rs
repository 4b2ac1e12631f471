//! TLS of the program: which certificates each `sslmode` accepts. The certificates of `tls/` were made for this test, and
//! last a hundred years.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use tokio_postgres::config::SslMode;
use xdb_tools::tls::settings;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Whether a client with these settings accepts the certificate of `db.test` under the name that it has asked for.
fn accepts(config: ClientConfig, name: &'static str) -> Result<(), Error> {
    let certificate = CertificateDer::from_pem_file(file("server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file("server.key")).expect("a key");
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|server| server.with_no_client_auth().with_single_cert(vec![certificate], key))
        .expect("a server");
    let mut server = ServerConnection::new(Arc::new(server)).expect("a server");
    let name = ServerName::try_from(name).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    while client.is_handshaking() || server.is_handshaking() {
        let mut sent = Vec::new();
        client.write_tls(&mut sent).expect("into memory");
        server.read_tls(&mut &*sent).expect("from memory");
        server.process_new_packets()?;
        sent.clear();
        server.write_tls(&mut sent).expect("into memory");
        client.read_tls(&mut &*sent).expect("from memory");
        client.process_new_packets()?;
    }
    Ok(())
}

#[test]
fn each_mode_checks_what_libpq_checks() {
    let (ours, another) = (file("authority.pem"), file("another-authority.pem"));
    let (ours, another) = (ours.to_str(), another.to_str());
    for (mode, roots, name, expected, accepted) in [
        (Some("disable"), None, "db.test", SslMode::Disable, true),
        (None, None, "elsewhere.test", SslMode::Prefer, true),
        (Some("prefer"), another, "elsewhere.test", SslMode::Prefer, true),
        (Some("require"), None, "elsewhere.test", SslMode::Require, true),
        (Some("require"), another, "db.test", SslMode::Require, false),
        (Some("verify-ca"), ours, "elsewhere.test", SslMode::Require, true),
        (Some("verify-ca"), another, "db.test", SslMode::Require, false),
        (Some("verify-full"), ours, "db.test", SslMode::Require, true),
        (Some("verify-full"), ours, "elsewhere.test", SslMode::Require, false),
        (Some("verify-full"), another, "db.test", SslMode::Require, false),
    ] {
        let (found, config) = settings(mode, roots, None).expect("valid settings");
        assert_eq!(found, expected, "{mode:?}");
        assert_eq!(accepts(config, name).is_ok(), accepted, "{mode:?} {roots:?} {name}");
    }
}

#[test]
fn libpqs_file_of_authorities_counts_and_what_cant_be_checked_is_an_error() {
    let another = file("another-authority.pem");
    let (_, config) = settings(Some("require"), None, Some(&another)).expect("valid settings");
    assert!(accepts(config, "db.test").is_err(), "require checks if the file is there");
    let nowhere = Path::new("/nowhere/root.crt");
    for (mode, roots, problem) in [
        ("verify-full", None, "name a file by sslrootcert"),
        ("verify-ca", Some("/nowhere/root.crt"), "/nowhere/root.crt: "),
        ("strict", None, "invalid sslmode: \"strict\""),
    ] {
        let refused = settings(Some(mode), roots, Some(nowhere)).expect_err("it can't be checked");
        assert!(refused.contains(problem), "{refused}");
    }
}
