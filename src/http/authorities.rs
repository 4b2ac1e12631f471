//! The trusted certificate authorities: those of browsers, and those in the file of a setting.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::reactor::reason;

/// The setting that names the file, for messages.
const SETTING: &str = "xdb.ssl_ca_file";

/// Largest file, in bytes. The bundle of a whole system has about a tenth of it.
const LARGEST: u64 = 4 << 20;

/// The authorities in a file. Messages don't name the file: the caller may not be allowed to know its path.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads the certificates of a PEM file, and skips everything else in it. An empty path gives no authorities.
    /// Errors say what is wrong.
    pub fn read(path: &str) -> Result<Authorities, String> {
        if path.is_empty() {
            return Ok(Authorities::default());
        }
        let text = read_file(Path::new(path)).map_err(|why| format!("the file of {SETTING} can't be read: {why}"))?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let authorities = Authorities(
            found.map_err(|why| format!("the file of {SETTING} is not a PEM file of certificates: {why}"))?,
        );
        if authorities.0.is_empty() {
            return Err(format!("the file of {SETTING} has no certificate"));
        }
        authorities.beside(&RootCertStore::empty())?;
        Ok(authorities)
    }

    /// The TLS client configuration that trusts these authorities and `roots`.
    pub(super) fn client(&self, roots: &RootCertStore) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_protocol_versions(rustls::ALL_VERSIONS);
        let builder = versions.map_err(|why| why.to_string())?;
        Ok(Arc::new(builder.with_root_certificates(self.beside(roots)?).with_no_client_auth()))
    }

    fn beside(&self, roots: &RootCertStore) -> Result<RootCertStore, String> {
        let mut all = roots.clone();
        for (number, certificate) in self.0.iter().enumerate() {
            let added = all.add(certificate.clone());
            added.map_err(|why| format!("certificate {} in the file of {SETTING} can't be used: {why}", number + 1))?;
        }
        Ok(all)
    }
}

/// Reads regular files up to [`LARGEST`] only: other files may be endless, or block.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let why = |error| reason(&error);
    if !path.metadata().map_err(why)?.is_file() {
        return Err("it is not an ordinary file".to_owned());
    }
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text)).map_err(why)?;
    if text.len() as u64 > LARGEST {
        return Err(format!("it is larger than {} MB", LARGEST >> 20));
    }
    Ok(text)
}
