//! TLS to the server, as `sslmode` of libpq says.
//!
//! | `sslmode` | the connection is encrypted | the certificate of the server |
//! |---|---|---|
//! | `disable` | no | |
//! | `allow`, `prefer` | if the server offers it | is not checked |
//! | `require` | yes | is checked like `verify-ca` if the file of authorities exists, as libpq does |
//! | `verify-ca` | yes | was signed by an authority of `sslrootcert` |
//! | `verify-full` | yes | and names the host |

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::Path;
use std::sync::Arc;
use tokio_postgres::config::SslMode;

/// Certificates of the authorities that the system trusts, for `sslrootcert=system`.
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What `sslmode` and `sslrootcert` ask for. `default_roots`: libpq's file of authorities if `sslrootcert` names none.
pub fn settings(
    mode: Option<&str>,
    roots: Option<&str>,
    default_roots: Option<&Path>,
) -> Result<(SslMode, ClientConfig), String> {
    let file = match roots {
        Some("system") => Some(Path::new(SYSTEM)),
        Some(file) => Some(Path::new(file)),
        None => default_roots.filter(|file| file.exists()),
    };
    let (mode, checks) = match mode {
        Some("disable") => (SslMode::Disable, Checks::Nothing),
        None | Some("allow" | "prefer") => (SslMode::Prefer, Checks::Nothing),
        Some("require") if file.is_none() => (SslMode::Require, Checks::Nothing),
        Some("require" | "verify-ca") => (SslMode::Require, Checks::Authority),
        Some("verify-full") => (SslMode::Require, Checks::AuthorityAndName),
        Some(other) => return Err(format!("invalid sslmode: \"{other}\"")),
    };
    let provider = Arc::new(ring::default_provider());
    let inner = match (&checks, file) {
        (Checks::Nothing, _) => None,
        (_, None) => return Err("sslmode asks for the check of a certificate: name a file by sslrootcert".to_owned()),
        (_, Some(file)) => Some(authorities(file, &provider)?),
    };
    let verifier = Arc::new(Verifier { checks, inner, provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?.dangerous().with_custom_certificate_verifier(verifier);
    Ok((mode, config.with_no_client_auth()))
}

fn authorities(file: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, String> {
    let problem = |error: String| format!("{}: {error}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| problem(error.to_string()))? {
        let certificate = certificate.map_err(|error| problem(error.to_string()))?;
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    built.map_err(|error| problem(error.to_string()))
}

#[derive(Debug)]
enum Checks {
    Nothing,
    Authority,
    AuthorityAndName,
}

#[derive(Debug)]
struct Verifier {
    checks: Checks,
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match (inner.verify_server_cert(certificate, intermediates, name, ocsp, now), &self.checks) {
            // The name is judged after the chain.
            (
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )),
                Checks::Authority,
            ) => Ok(ServerCertVerified::assertion()),
            (judged, _) => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
