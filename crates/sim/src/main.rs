//! The program `xdb-sim`: reads a command from each line of stdin, and writes its result as a line to stdout.

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use xdb_protocol::parse_moment;
use xdb_sim::Simulator;

const USAGE: &str = "usage: xdb-sim [--now TIME]
Commands are lines of JSON on stdin, each answered with a line on stdout: see crates/sim/README.md.
TIME, in RFC 3339, is what the clock begins with; without it, 2027-01-01T00:00:00Z.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let now = match arguments {
        [] => "2027-01-01T00:00:00Z",
        ["--now", now] => now,
        ["--version" | "--help"] => {
            println!("xdb-sim {}\n{USAGE}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        _ => return Err(USAGE.into()),
    };
    let mut simulator = Simulator::new(parse_moment(now).map_err(|what| format!("--now: {what}"))?);
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
