//! The library of the program `xdb`: what `xdb show`, `xdb doctor`, `xdb metrics` and `xdb console` do.
//!
//! The program is a client of the server like any other. It has the rights of its role, calls the functions and reads
//! the views of [the reference](../../../docs/reference/README.md), and changes nothing.
//!
//! | file | what it is for |
//! |---|---|
//! | `main.rs` | the command line: commands, options, exit codes |
//! | `sentence.rs` | why a process is where it is: sentences from `xdb.describe_process`, without I/O |
//! | `text.rs` | values in sentences: names, durations, moments |
//! | `show.rs` | `xdb show` |
//! | `doctor.rs`, `checks.rs` | `xdb doctor`: what it reads, and what it concludes from that, without I/O |
//! | `metrics.rs` | `xdb metrics`: `xdb.openmetrics()` over HTTP |
//! | `console` | `xdb console`: pages for a browser |
//! | `connection.rs`, `environment.rs`, `tls.rs` | a session, with the variables and files of libpq |

pub mod checks;
pub mod connection;
pub mod console;
pub mod doctor;
pub mod environment;
#[allow(dead_code, reason = "it is the extension's file")]
#[path = "../../../src/http/hosts.rs"]
pub mod hosts;
pub mod metrics;
pub mod sentence;
pub mod show;
pub mod text;
pub mod tls;
