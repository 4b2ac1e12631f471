//! Workers behind TLS, and the authorities that sign their certificates.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::worker::Worker;

/// An authority that signs certificates, and that no system trusts.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The authority's own certificate, as PEM.
    pub pem: String,
}

impl Default for Authority {
    fn default() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        let lines = BASE64_STANDARD.encode(certificate.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n");
        Authority { issuer: Issuer::new(params, key), pem }
    }
}

/// Accepts calls over TLS and passes them to a worker without TLS. It stops when dropped.
pub struct Front {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Front {
    /// Listens on a free port of 127.0.0.1, the address in the certificate.
    pub fn start(worker: &Worker, authority: &Authority) -> Front {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.signed_by(&key, &authority.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        let config =
            Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).expect("they belong together"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let front =
            Front { address: listener.local_addr().expect("a bound socket"), stop: Arc::new(AtomicBool::new(false)) };
        let (stop, behind) = (front.stop.clone(), worker.url().replace("http://", ""));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), Ok(behind), Ok(session)) =
                    (stream, TcpStream::connect(&behind), ServerConnection::new(config.clone()))
                else {
                    continue;
                };
                // An untrusted caller is disconnected. A connection that ends needs no more work.
                thread::spawn(move || relay(StreamOwned::new(session, stream), behind));
            }
        });
        front
    }

    /// The URL for `register_worker`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The listener's thread sits in `accept`.
        let _ = TcpStream::connect(self.address);
    }
}

fn relay(mut caller: impl Read + Write, mut worker: TcpStream) -> io::Result<()> {
    loop {
        let request = message(&mut caller)?;
        worker.write_all(&request)?;
        let answer = message(&mut worker)?;
        caller.write_all(&answer)?;
        caller.flush()?;
    }
}

/// Reads the bytes of one message. Its head gives the length of its body.
fn message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        bytes.extend(byte);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let head = bytes.len();
    bytes.resize(head + length.unwrap_or(0), 0);
    from.read_exact(&mut bytes[head..])?;
    Ok(bytes)
}
