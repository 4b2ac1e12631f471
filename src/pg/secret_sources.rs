//! Reads secrets from outside of the database: from the environment of the server's start, or from files in a
//! directory.
//!
//! Messages name neither the directory nor its content: roles without a right to know them may see the messages.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest secret in bytes. Longer content can't be a secret.
const LARGEST: u64 = 4096;

/// The value of a variable of the server's environment, as it was at the start of the server.
pub fn of_environment(name: &str) -> Result<String, String> {
    let value = std::env::var_os(name).ok_or("its environment variable is not set")?;
    whole(value.into_encoded_bytes(), "its environment variable")
}

/// The text of a file directly in `directory`, without the end of its last line. The file may be a link that stays
/// within the directory: orchestrators replace files in this way.
pub fn of_file(directory: &str, name: &str) -> Result<String, String> {
    if directory.is_empty() {
        return Err("it is in a file, and xdb.secrets_directory is not set".to_owned());
    }
    let unreadable = |error: io::Error| format!("its file can't be read: {}", problem_of(&error));
    let directory = Path::new(directory)
        .canonicalize()
        .map_err(|error| format!("the directory of xdb.secrets_directory can't be used: {}", problem_of(&error)))?;
    let path = directory.join(name).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&directory) {
        return Err("its file is outside of the directory of xdb.secrets_directory".to_owned());
    }
    // Never opens what would block, or a link that replaced the file meanwhile.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("its file can't be read: it is not an ordinary file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    whole(line.to_vec(), "its file")
}

fn whole(bytes: Vec<u8>, what: &str) -> Result<String, String> {
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => Err(format!("{what} is empty")),
        Ok(text) if text.len() as u64 > LARGEST => Err(format!("{what} is longer than {LARGEST} bytes")),
        Ok(text) => Ok(text),
        Err(_) => Err(format!("{what} is not text in UTF-8")),
    }
}

fn problem_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase(),
        None => error.to_string(),
    }
}
