//! A session that reads, and its errors in words.

use crate::environment::Parameters;
use crate::text::role_literal;
use crate::tls;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a connection is waited for, unless `connect_timeout` says something else.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of every session. The path has no object of other roles. Texts are read as they are written.
const COMMON: &str = "SET search_path = pg_catalog, pg_temp; SET client_min_messages = warning; SET lock_timeout = '500ms'; \
    SET standard_conforming_strings = on; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'";

/// What the sessions of a command may do.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub program: &'static str,
    pub reads_only: bool,
    /// As Postgres writes it.
    pub statement_timeout: &'static str,
}

/// An error in words, with the SQLSTATE if the server has raised it.
#[derive(Debug)]
pub struct Trouble {
    pub code: Option<String>,
    pub message: String,
    pub hint: Option<String>,
}

impl Trouble {
    pub fn new(message: impl Into<String>) -> Trouble {
        Trouble { code: None, message: message.into(), hint: None }
    }

    /// Whether the server has asked for a password, and there was none.
    pub fn asks_for_password(&self) -> bool {
        self.code.is_none() && self.message.ends_with("password missing")
    }

    /// With advice if no server answers. Other troubles, such as a missing password, are not about the address.
    fn of_connecting(mut self, parameters: &Parameters) -> Trouble {
        if self.message.starts_with("error connecting to server") {
            let [host, port] = ["host", "port"].map(|name| parameters.get(name).unwrap_or_default());
            self.hint = Some(format!("Does the server run at {host}, port {port}? See PGHOST and PGPORT."));
        }
        self
    }

    /// With advice for errors that an installation has.
    fn advised(mut self, session: &ServerSession) -> Trouble {
        let ServerSession { database, role, .. } = session;
        match self.code.as_deref() {
            Some("3F000") if self.message.contains("schema \"xdb\" does not exist") => {
                self.message = format!("the database \"{database}\" does not have the extension xdb");
                self.hint = Some("Choose another database, or run CREATE EXTENSION xdb.".to_owned());
            }
            Some("3F000" | "42883" | "42P01" | "42703") => {
                self.hint = Some(format!(
                    "The database \"{database}\" does not have the extension xdb, or has it in another version than this program: \
                     see xdb doctor."
                ));
            }
            Some("42501") if self.hint.is_none() => {
                let role = role_literal(role);
                self.hint = Some(format!(
                    "If the role may not use XDB yet, run SELECT xdb.grant_usage({role}), as a superuser."
                ));
            }
            Some("57014" | "55P03") => {
                self.hint = Some("The server is busy, or a table is locked: try again, or ask for less.".to_owned());
            }
            Some("XD012") => {
                self.hint = Some("Connect to the primary. On a standby, the list of the console works.".to_owned());
            }
            _ => {}
        }
        self
    }
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Trouble {
        if let Some(error) = error.as_db_error() {
            let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
            return Trouble {
                code: Some(error.code().code().to_owned()),
                message: format!("{}{detail}", error.message()),
                hint: error.hint().map(str::to_owned),
            };
        }
        let mut message = error.to_string();
        if let Some(source) = error.source() {
            message = format!("{message}: {source}");
        }
        Trouble::new(message)
    }
}

/// A session, with the names of its database and role for messages.
pub struct ServerSession {
    client: Client,
    connection: JoinHandle<()>,
    pub database: String,
    role: String,
}

impl ServerSession {
    /// Connects, and gives the session its settings.
    pub async fn open(parameters: &Parameters, purpose: Use) -> Result<ServerSession, Trouble> {
        let config = config(parameters, purpose.program).map_err(Trouble::new)?;
        let [database, role] = ["dbname", "user"].map(|name| parameters.get(name).unwrap_or_default().to_owned());
        let connected = connect(&config, parameters).await;
        let (client, connection) = connected.map_err(|trouble| trouble.of_connecting(parameters))?;
        let access = if purpose.reads_only { "on" } else { "off" };
        let timeout = purpose.statement_timeout;
        let own = format!("SET default_transaction_read_only = {access}; SET statement_timeout = '{timeout}'");
        client.batch_execute(&format!("{COMMON}; {own}")).await.map_err(Trouble::from)?;
        Ok(ServerSession { client, connection, database, role })
    }

    /// Ends the session. Without this, the end of the program leaves a line in the server's log.
    pub async fn close(self) {
        drop(self.client);
        // A connection that failed has ended too.
        let _ = self.connection.await;
    }

    /// Whether the server has ended the session.
    pub fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    /// The only value of a query, as text.
    pub async fn value(&self, sql: &str, params: &[Option<&str>]) -> Result<Option<String>, Trouble> {
        let rows = self.rows(sql, params).await?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// An error of a statement, with advice.
    fn trouble(&self, error: tokio_postgres::Error) -> Trouble {
        Trouble::from(error).advised(self)
    }

    /// Runs a statement as it is written. Returns the first value of its result, if it has one.
    pub async fn run(&self, sql: &str) -> Result<Option<String>, Trouble> {
        let messages = self.client.simple_query(sql).await.map_err(|error| self.trouble(error))?;
        Ok(messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).filter(|value| !value.is_empty()).map(str::to_owned),
            _ => None,
        }))
    }

    /// The rows of a query with columns of the type `text`. The parameters are texts too.
    pub async fn rows(&self, sql: &str, params: &[Option<&str>]) -> Result<Vec<Vec<Option<String>>>, Trouble> {
        let trouble = |error| self.trouble(error);
        let types = vec![tokio_postgres::types::Type::TEXT; params.len()];
        let statement = self.client.prepare_typed(sql, &types).await.map_err(trouble)?;
        let params: Vec<_> = params.iter().map(|value| value as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
        let rows = self.client.query(&statement, &params).await.map_err(trouble)?;
        let read = |row: &tokio_postgres::Row| (0..row.len()).map(|column| row.get(column)).collect();
        Ok(rows.iter().map(read).collect())
    }
}

fn config(parameters: &Parameters, program: &str) -> Result<Config, String> {
    let mut config = Config::new();
    let number = |name: &str| {
        let value =
            parameters.get(name).map(|value| value.parse::<u32>().map_err(|_| format!("invalid {name}: \"{value}\"")));
        value.transpose()
    };
    if let Some(host) = parameters.get("host") {
        config.host(host);
    }
    if let Some(address) = parameters.get("hostaddr") {
        config.hostaddr(address.parse().map_err(|_| format!("invalid hostaddr: \"{address}\""))?);
    }
    let port = number("port")?.and_then(|port| u16::try_from(port).ok()).ok_or("invalid port")?;
    config.port(port);
    config.user(parameters.get("user").unwrap_or_default()).dbname(parameters.get("dbname").unwrap_or_default());
    config.application_name(parameters.get("application_name").unwrap_or(program));
    if let Some(password) = parameters.get("password") {
        config.password(password);
    }
    if let Some(options) = parameters.get("options") {
        config.options(options);
    }
    config.connect_timeout(match number("connect_timeout")? {
        None | Some(0) => CONNECT_TIMEOUT,
        Some(seconds) => Duration::from_secs(seconds.into()),
    });
    config.target_session_attrs(match parameters.get("target_session_attrs") {
        None | Some("any") => TargetSessionAttrs::Any,
        Some("read-write" | "primary") => TargetSessionAttrs::ReadWrite,
        Some("read-only" | "standby") => TargetSessionAttrs::ReadOnly,
        Some(other) => return Err(format!("target_session_attrs \"{other}\" is not supported")),
    });
    Ok(config)
}

async fn connect(config: &Config, parameters: &Parameters) -> Result<(Client, JoinHandle<()>), Trouble> {
    // An address leads over TCP, also if the host is a directory.
    if parameters.get("hostaddr").is_none() && parameters.get("host").is_some_and(|host| host.starts_with('/')) {
        let (client, connection) = config.connect(NoTls).await?;
        return Ok((client, tokio::spawn(ended(connection))));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let roots = home.map(|home| home.join(".postgresql/root.crt"));
    let (mode, settings) = tls::settings(parameters.get("sslmode"), parameters.get("sslrootcert"), roots.as_deref())
        .map_err(Trouble::new)?;
    let mut config = config.clone();
    config.ssl_mode(mode);
    let (client, connection) = config.connect(MakeRustlsConnect::new(settings)).await?;
    Ok((client, tokio::spawn(ended(connection))))
}

/// Serves a connection until it ends. The statements that fail with it have the error.
async fn ended(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[test]
    fn only_a_server_that_does_not_answer_is_a_matter_of_its_address() {
        let hint = |message: &str| Trouble::new(message).of_connecting(&Parameters::default()).hint;
        assert!(hint("error connecting to server: Connection refused").is_some());
        assert!(hint("invalid configuration: password missing").is_none());
    }

    #[tokio::test]
    async fn an_address_beside_a_directory_is_asked_for_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port().to_string();
        let options =
            [("host", "/tmp"), ("hostaddr", "127.0.0.1"), ("port", &*port), ("user", "u"), ("sslmode", "require")];
        let parameters =
            Parameters::resolve(&options.map(|(name, value)| (name, Some(value))), |_| None).expect("known");
        let config = config(&parameters, "test").expect("valid");
        let asked = async {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut request = [0; 8];
            client.read_exact(&mut request).await.map(|_| request)
        };
        let (_, asked) = tokio::join!(connect(&config, &parameters), asked);
        // The code of an SSLRequest: https://www.postgresql.org/docs/15/protocol-message-formats.html
        assert_eq!(asked.expect("a request")[4..], 80_877_103_u32.to_be_bytes());
    }
}
