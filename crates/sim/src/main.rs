//! The simulator as a program: a command in each line of stdin, and its result in a line of stdout.

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use xdb_protocol::parse_moment;
use xdb_sim::Simulator;

const USAGE: &str = "usage: xdb-sim [--now TIME]
Commands are lines of JSON on stdin, each answered with a line on stdout: see crates/sim/README.md.
TIME, in RFC 3339, is what the clock begins with; without it, 2027-01-01T00:00:00Z.";

const BEGINNING: &str = "2027-01-01T00:00:00Z";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let now = match arguments[..] {
        [] => BEGINNING,
        ["--now", now] => now,
        ["--version"] => {
            println!("xdb-sim {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        ["--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => return failed(USAGE),
    };
    match parse_moment(now) {
        Err(what) => failed(&format!("--now: {what}")),
        Ok(now) => match serve(&mut Simulator::new(now)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error.to_string()),
        },
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

fn serve(simulator: &mut Simulator) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let line = line?;
        if !line.trim().is_empty() {
            writeln!(out, "{}", simulator.line(&line))?;
            out.flush()?;
        }
    }
    Ok(())
}
