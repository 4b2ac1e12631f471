//! Puts the scripts of the updates together, one from each released version to this one: how every update begins, what
//! `sql/updates` has from there on, and all of `sql/always`. They go to `sql`, where cargo-pgrx looks for them, and are never
//! committed.

use std::fs;
use std::time::SystemTime;

const BEGIN: &str = "begin.sql";

fn main() {
    for input in ["src/lib.rs", "sql/once", "sql/always", "sql/updates", "sql/releases"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let always = always();
    // The steps from each version on, the latest first.
    let mut steps = Vec::new();
    let mut updates = files("sql/updates");
    let mut written = Vec::new();
    let mut version = env!("CARGO_PKG_VERSION").to_owned();
    for release in releases().into_iter().rev().filter(|release| *release != env!("CARGO_PKG_VERSION")) {
        let step = format!("{release}--{version}.sql");
        updates.retain(|file| *file != step);
        steps.insert(0, format!("sql/updates/{step}"));
        let begin = [format!("sql/updates/{BEGIN}")];
        let script = begin.iter().chain(&steps).chain(&always).map(|part| format!("-- {part}\n\n{}\n", read(part)));
        let target = format!("xdb--{release}--{}.sql", env!("CARGO_PKG_VERSION"));
        write(&format!("sql/{target}"), &script.collect::<String>());
        written.push(target);
        version = release;
    }
    assert_eq!(updates, [BEGIN], "sql/updates: one file for each step from release to release, and how they begin");
    // What builds of other versions have left would be installed too.
    let released = read("sql/releases.sha256");
    let scripts = files("sql").into_iter().filter(|file| file.matches("--").count() == 2);
    for old in scripts.filter(|file| !written.contains(file) && !released.contains(&format!("  {file}\n"))) {
        fs::remove_file(format!("sql/{old}")).unwrap_or_else(|error| panic!("sql/{old}: {error}"));
    }
}

/// Released versions, from the oldest.
fn releases() -> Vec<String> {
    let lines = read("sql/releases");
    let versions = lines.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
    versions.map(str::to_owned).collect()
}

/// The files of `sql/always` in the order in which a new installation runs them, after those of `sql/once`.
fn always() -> Vec<String> {
    let lib = read("src/lib.rs");
    let named: Vec<String> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pgrx::extension_sql_file!(\"../"))
        .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect();
    let in_directory = |directory: &str| named.iter().filter(|file| file.starts_with(directory)).cloned().collect();
    let (once, always): (Vec<String>, Vec<String>) = (in_directory("sql/once/"), in_directory("sql/always/"));
    assert_eq!(named, [once.as_slice(), &always].concat(), "src/lib.rs: first all of sql/once, then all of sql/always");
    for (directory, mut named) in [("sql/once", once), ("sql/always", always.clone())] {
        let there: Vec<String> = files(directory).iter().map(|file| format!("{directory}/{file}")).collect();
        named.sort();
        assert_eq!(named, there, "src/lib.rs has to name the files of {directory}, each once");
    }
    always
}

/// The names of all that is in a directory, sorted.
fn files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().into_string().expect("a name in UTF-8")).collect();
    names.sort();
    names
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Two builds of one tree may write at the same time, and what is as it should be is not touched.
fn write(target: &str, script: &str) {
    println!("cargo::rerun-if-changed={target}");
    if fs::read_to_string(target).is_ok_and(|there| there == script) {
        return;
    }
    let new = format!("{target}.{}", std::process::id());
    fs::write(&new, script).unwrap_or_else(|error| panic!("{new}: {error}"));
    // Not newer than what it is made of, or cargo would run this again.
    let file = fs::File::options().append(true).open(&new).expect("it was just written");
    file.set_modified(SystemTime::UNIX_EPOCH).expect("it is ours");
    fs::rename(&new, target).unwrap_or_else(|error| panic!("{target}: {error}"));
}
