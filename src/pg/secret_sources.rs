//! Secrets that stand outside of the database: in the environment that the server was started with, or in files below a directory.
//!
//! Messages name neither the directory nor what is in it: they are shown to whom that is no business of.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whoever has put something longer there has put something else there.
const LARGEST: u64 = 4096;

/// The value of a variable of the server's environment, as it was when the server was started.
pub fn of_environment(name: &str) -> Result<String, String> {
    let value = std::env::var_os(name).ok_or("its environment variable is not set")?;
    whole(value.into_encoded_bytes(), "its environment variable")
}

/// The text of a file right below `directory`, without the end of its last line. The file may be a link, as long as it leads to
/// somewhere below the directory: so orchestrators replace files.
pub fn of_file(directory: &str, name: &str) -> Result<String, String> {
    if directory.is_empty() {
        return Err("it is in a file, and xdb.secrets_directory is not set".to_owned());
    }
    let unreadable = |error: io::Error| format!("its file can't be read: {}", told(&error));
    let directory = Path::new(directory)
        .canonicalize()
        .map_err(|error| format!("the directory of xdb.secrets_directory can't be used: {}", told(&error)))?;
    let path = directory.join(name).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&directory) {
        return Err("its file is outside of the directory of xdb.secrets_directory".to_owned());
    }
    // Nothing that waits is opened, nor what took the file's place meanwhile.
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

fn told(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase(),
        None => error.to_string(),
    }
}
