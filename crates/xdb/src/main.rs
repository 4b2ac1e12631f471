//! The program `xdb`: what psql can't say in one line.
//!
//! | exit code | |
//! |---|---|
//! | 0 | done; `doctor`: no problem was found |
//! | 1 | `show`: the process does not exist. `doctor`: there are problems |
//! | 2 | the command line is wrong, or the server can't be asked |

use clap::{Args, Parser, Subcommand};
use serde_json::json;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use xdb_tools::checks::Health;
use xdb_tools::connection::{ServerSession, Trouble, Use};
use xdb_tools::console::{self, ConsoleOptions};
use xdb_tools::environment::Parameters;
use xdb_tools::{doctor, metrics, show, text};

/// Shows what XDB processes wait for, and whether a server is set up for them.
#[derive(Parser)]
#[command(name = "xdb", version, disable_help_subcommand = true, disable_help_flag = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Verb,
    /// Print help
    #[arg(long, global = true, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Subcommand)]
enum Verb {
    /// Say why a process is where it is
    Show {
        /// The process id
        id: String,
        /// The execution; default: the latest one
        #[arg(long)]
        execution: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connection: ConnectionOptions,
    },
    /// Serve pages about processes to a browser
    Console {
        /// Address and port, of this machine alone
        #[arg(long, default_value = "127.0.0.1:7433")]
        listen: SocketAddr,
        /// Visitors log in with a role and its password
        #[arg(long)]
        login: bool,
        /// A further host by which browsers name the console, with its port. Can be repeated
        #[arg(long = "host", value_name = "HOST")]
        hosts: Vec<String>,
        /// Where a proxy has the console, such as /xdb
        #[arg(long, default_value = "")]
        base_path: String,
        /// Allow no actions
        #[arg(long)]
        read_only: bool,
        /// Show no payloads, inputs and attributes
        #[arg(long)]
        hide_payloads: bool,
        /// Role
        #[arg(short = 'U', long)]
        username: Option<String>,
        /// Database
        #[arg(short, long)]
        dbname: Option<String>,
    },
    /// Serve xdb.openmetrics() over HTTP, for Prometheus
    Metrics {
        /// Address and port
        #[arg(long, default_value = "127.0.0.1:9433")]
        listen: SocketAddr,
        #[command(flatten)]
        connection: ConnectionOptions,
    },
    /// Check the server and the database, and say how to mend each problem
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connection: ConnectionOptions,
    },
}

/// As psql has them. Other parameters come from the environment variables of libpq, and from its service file.
#[derive(Args)]
struct ConnectionOptions {
    /// Host name, or directory of the socket
    #[arg(short = 'h', long)]
    host: Option<String>,
    /// Port
    #[arg(short, long)]
    port: Option<String>,
    /// Role
    #[arg(short = 'U', long)]
    username: Option<String>,
    /// Database
    #[arg(short, long)]
    dbname: Option<String>,
}

impl ConnectionOptions {
    fn parameters(&self) -> Result<Parameters, Trouble> {
        let options = [
            ("host", self.host.as_deref()),
            ("port", self.port.as_deref()),
            ("user", self.username.as_deref()),
            ("dbname", self.dbname.as_deref()),
        ];
        Parameters::resolve(&options, |name| std::env::var(name).ok()).map_err(Trouble::new)
    }

    /// A session that reads.
    async fn open(&self, program: &'static str) -> Result<ServerSession, Trouble> {
        let reads = Use { program, reads_only: true, statement_timeout: "10s" };
        ServerSession::open(&self.parameters()?, reads).await
    }
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match built {
        Ok(runtime) => runtime.block_on(run(line.command)),
        Err(error) => Err(Trouble::new(error.to_string())),
    };
    done.unwrap_or_else(|trouble| {
        eprintln!("xdb: {}", text::visible(&trouble.message));
        if let Some(hint) = &trouble.hint {
            eprintln!("HINT: {}", text::visible(hint));
        }
        ExitCode::from(if trouble.code.as_deref() == Some("XD001") { 1 } else { 2 })
    })
}

async fn run(command: Verb) -> Result<ExitCode, Trouble> {
    match command {
        Verb::Show { id, execution, json, connection } => {
            let session = connection.open("xdb show").await?;
            let read = show::read(&session, &id, execution.as_deref()).await;
            session.close().await;
            let shown = read?;
            print(&if json { text::visible_json(&shown.json()) + "\n" } else { shown.text() })?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Console { listen, login, hosts, base_path, read_only, hide_payloads, username, dbname } => {
            let connection = ConnectionOptions { host: None, port: None, username, dbname };
            let options = ConsoleOptions { listen, hosts, base_path, login, read_only, hide_payloads };
            let announce = |address: String| print(&format!("{address}\n"));
            console::serve(options, connection.parameters()?, announce).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Metrics { listen, connection } => {
            let announce = |address| print(&format!("http://{address}/metrics\n"));
            metrics::serve(connection.parameters()?, listen, announce).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Doctor { json: as_json, connection } => {
            let session = connection.open("xdb doctor").await?;
            let examined = doctor::examine(&session).await;
            session.close().await;
            let findings = examined?;
            let is_well = findings.iter().all(|finding| finding.health != Health::Bad);
            let lines = match as_json {
                true => {
                    let checks: Vec<_> = findings.iter().map(|finding| finding.json()).collect();
                    let status = if is_well { "ok" } else { "problem" };
                    text::visible_json(&json!({"status": status, "checks": checks}).to_string()) + "\n"
                }
                false => findings.iter().map(|finding| finding.line() + "\n").collect(),
            };
            print(&lines)?;
            Ok(ExitCode::from(u8::from(!is_well)))
        }
    }
}

/// Writes to the standard output. A reader that has left, such as `head`, is no error.
fn print(text: &str) -> Result<(), Trouble> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Trouble::new(error.to_string())),
        _ => Ok(()),
    }
}
