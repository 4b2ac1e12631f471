//! The examples of README.md are true, for the library and for the program.

use std::io::Write;
use std::process::{Command, Stdio};
use xdb_engine::Timestamp;
use xdb_sim::Simulator;

const README: &str = include_str!("../README.md");
/// 2027-01-01T00:00:00Z
const BEGINNING: Timestamp = Timestamp(1_798_761_600_000_000);

/// The commands in README.md, each with its answer.
fn examples() -> Vec<(&'static str, &'static str)> {
    let mut lines = README.lines().filter(|line| line.starts_with("> ") || line.starts_with("< "));
    let mut examples = Vec::new();
    while let Some(command) = lines.next() {
        let answer = lines.next().unwrap_or_default();
        examples.push((command.strip_prefix("> ").unwrap(), answer.strip_prefix("< ").unwrap()));
    }
    examples
}

/// Whether an answer fits an example, in which `…` stands for any text.
fn fits(example: &str, mut answer: &str) -> bool {
    let (beginning, end) =
        (example.split('…').next().unwrap_or_default(), example.rsplit('…').next().unwrap_or_default());
    if !example.contains('…') {
        return example == answer;
    }
    if !answer.starts_with(beginning) || !answer.ends_with(end) || answer.len() < beginning.len() + end.len() {
        return false;
    }
    answer = &answer[beginning.len()..answer.len() - end.len()];
    let mut parts: Vec<&str> = example.split('…').skip(1).collect();
    parts.pop();
    parts.iter().all(|part| match answer.find(part) {
        Some(at) => {
            answer = &answer[at + part.len()..];
            true
        }
        None => false,
    })
}

#[test]
fn the_library_does_what_the_readme_shows() {
    let mut simulator = Simulator::new(BEGINNING);
    for (command, expected) in examples() {
        let answer = simulator.line(command);
        assert!(fits(expected, &answer), "{command}\nshould be {expected}\nand is    {answer}");
    }
}

#[test]
fn the_program_answers_like_the_library() {
    let mut program =
        Command::new(env!("CARGO_BIN_EXE_xdb-sim")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = program.stdin.take().unwrap();
    for (command, _) in examples() {
        writeln!(stdin, "{command}\n").unwrap();
    }
    drop(stdin);
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success());
    let mut simulator = Simulator::new(BEGINNING);
    let expected: Vec<_> = examples().iter().map(|(command, _)| simulator.line(command)).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn every_command_has_an_example() {
    let source = include_str!("../src/line.rs");
    let names: Vec<_> = source.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" => ")).collect();
    assert!(names.len() > 20, "{names:?}");
    for (name, _) in names {
        let is_shown = examples().iter().any(|(example, _)| example.starts_with(&format!("{{\"{name}\":")));
        assert!(is_shown, "{name} has no example");
    }
}

#[test]
fn the_program_takes_the_time_to_begin_with() {
    let run = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_xdb-sim"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // If the program refuses its arguments, it does not read, and the write may fail.
        let _ = program.stdin.take().unwrap().write_all(b"{\"advance\": {\"by\": 0}}\n");
        let output = program.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (ok, output) = run(&["--now", "2026-07-01T12:00:00+02:00"]);
    assert!(ok && output.contains("\"now\":\"2026-07-01T10:00:00+00:00\""), "{output}");
    assert!(!run(&["--now", "noon"]).0);
    assert!(!run(&["--later"]).0);
}
