//! A server whose clock a test sets forward and back, as an administrator sets a machine's clock. For some names, its
//! name server never answers, or does not know them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::install;

/// The library that is preloaded into the server.
const SOURCE: &str = include_str!("skew.c");

/// Compiles the library into the server's directory. The clock is right at first.
pub fn prepare(directory: &Path) {
    let (source, library) = (directory.join("skew.c"), directory.join("skew.so"));
    fs::write(&source, SOURCE).expect("a directory of ours");
    install::run(
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source),
    );
    fs::write(directory.join("clock"), 0_i64.to_ne_bytes()).expect("a directory of ours");
    for file in [library, directory.join("clock")] {
        install::give_to_server(&file);
    }
}

/// Makes a server that starts in this directory load the library, if there is one.
pub fn preload(directory: &Path, server: &mut Command) {
    let library = directory.join("skew.so");
    if library.exists() {
        server.env("LD_PRELOAD", library).env("XDB_TEST_CLOCK", directory.join("clock"));
    }
}

/// Sets the server's clock to this many microseconds ahead of the real one.
pub fn set(directory: &Path, microseconds: i64) {
    // In its place, because the server has it mapped.
    let mut file =
        OpenOptions::new().write(true).open(directory.join("clock")).expect("a server with a clock of its own");
    file.write_all(&microseconds.to_ne_bytes()).expect("a file of ours");
}
