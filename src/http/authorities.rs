//! Whose certificates are trusted: those whom browsers trust, and what a file names besides.

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

/// What the bundles of whole systems have is a tenth of it.
const LARGEST: u64 = 4 << 20;

/// The authorities of a file. Messages do not name the file: who calls may not know where it is.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads the certificates of a file in PEM; no file has none. What else stands between them is skipped.
    pub fn read(path: &str) -> Result<Authorities, String> {
        if path.is_empty() {
            return Ok(Authorities::default());
        }
        let text = read_file(Path::new(path)).map_err(|why| format!("the file of {SETTING} can't be read: {why}"))?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let authorities =
            Authorities(found.map_err(|why| format!("the file of {SETTING} is none of certificates: {why}"))?);
        if authorities.0.is_empty() {
            return Err(format!("the file of {SETTING} has no certificate in it"));
        }
        authorities.beside(&RootCertStore::empty())?;
        Ok(authorities)
    }

    /// What connections are made with that trust these and `roots`.
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

/// Nothing that has no end, and nothing that waits.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let told = |error| reason(&error);
    if !path.metadata().map_err(told)?.is_file() {
        return Err("it is not an ordinary file".to_owned());
    }
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text)).map_err(told)?;
    if text.len() as u64 > LARGEST {
        return Err(format!("it is larger than {} MB", LARGEST >> 20));
    }
    Ok(text)
}
