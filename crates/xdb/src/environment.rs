//! Where a session goes: options of the command line, then the service file, then the variables of libpq, then libpq's
//! defaults.
//!
//! Limitations: only the parameters of [`PARAMETERS`] are known; there are no client certificates, no Kerberos, and no
//! connection strings. Other parameters of a service file are errors, so that none is silently without effect.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zeroize::Zeroize;

/// A parameter of libpq, and its environment variable.
const PARAMETERS: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("dbname", "PGDATABASE"),
    ("options", "PGOPTIONS"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("application_name", "PGAPPNAME"),
];

/// Variables by which a person demands something of the connection that this program can't give.
const UNMET_DEMANDS: [&str; 9] = [
    "PGREQUIREAUTH",
    "PGCHANNELBINDING",
    "PGREQUIREPEER",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLCERTMODE",
    "PGSSLCRL",
    "PGSSLCRLDIR",
    "PGSSLMINPROTOCOLVERSION",
];

/// The directories of the server's socket in which libpq of the distributions looks.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Parameters of a connection, by their names in libpq.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(BTreeMap<&'static str, String>);

impl Parameters {
    /// A parameter, unless it is missing or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn set_default(&mut self, name: &str, value: &str) -> Result<(), String> {
        let known = PARAMETERS.iter().find(|(known, _)| *known == name);
        let &(known, _) = known.ok_or_else(|| format!("the parameter \"{name}\" is not supported"))?;
        self.0.entry(known).or_insert_with(|| value.to_owned());
        Ok(())
    }

    /// The same server and database, for another role. None: without a password.
    pub fn of_role(&self, role: &str, password: Option<&str>) -> Parameters {
        let mut parameters = self.clone();
        parameters.forget_password();
        parameters.0.remove("password");
        parameters.0.insert("user", role.to_owned());
        if let Some(password) = password {
            parameters.0.insert("password", password.to_owned());
        }
        parameters
    }

    fn forget_password(&mut self) {
        if let Some(password) = self.0.get_mut("password") {
            password.zeroize();
        }
    }

    /// Completes the options of a command line. `variable` reads the environment.
    pub fn resolve(
        options: &[(&str, Option<&str>)],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Parameters, String> {
        let mut parameters = Parameters::default();
        for (name, value) in options {
            if let Some(value) = value {
                parameters.set_default(name, value)?;
            }
        }
        if let Some(service) = variable("PGSERVICE").filter(|service| !service.is_empty()) {
            parameters.of_service(&service, &variable)?;
        }
        if let Some(demand) = UNMET_DEMANDS.iter().find(|name| variable(name).is_some_and(|value| !value.is_empty())) {
            return Err(format!("{demand} is not supported: unset it"));
        }
        for (name, env) in PARAMETERS {
            if let Some(value) = variable(env).filter(|value| !value.is_empty()) {
                parameters.set_default(name, &value)?;
            }
        }
        parameters.defaults(&variable)?;
        Ok(parameters)
    }

    fn of_service(&mut self, service: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<(), String> {
        let of_user =
            variable("PGSERVICEFILE").map(PathBuf::from).or_else(|| Some(home(variable)?.join(".pg_service.conf")));
        let of_system = variable("PGSYSCONFDIR").map_or_else(|| PathBuf::from("/etc/postgresql-common"), PathBuf::from);
        for path in of_user.into_iter().chain([of_system.join("pg_service.conf")]) {
            let Ok(content) = std::fs::read_to_string(&path) else { continue };
            let shown = path.display();
            let Some(found) = section(&content, service).map_err(|problem| format!("{shown}: {problem}"))? else {
                continue;
            };
            for (name, value) in found {
                self.set_default(name, value)
                    .map_err(|problem| format!("{shown}, service \"{service}\": {problem}"))?;
            }
            return Ok(());
        }
        Err(format!("the service \"{service}\" was not found: see PGSERVICEFILE and ~/.pg_service.conf"))
    }

    fn defaults(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<(), String> {
        if self.get("user").is_none() {
            let user = variable("USER").or_else(|| variable("LOGNAME")).filter(|user| !user.is_empty());
            self.0.insert("user", user.ok_or("no user is known: set PGUSER, or use --username")?);
        }
        if self.get("dbname").is_none() {
            let user = self.get("user").unwrap_or_default().to_owned();
            self.0.insert("dbname", user);
        }
        if self.get("host").is_none() && self.get("hostaddr").is_none() {
            let exists = |path: &&str| Path::new(path).is_dir();
            self.0.insert("host", SOCKETS.into_iter().find(exists).unwrap_or(SOCKETS[1]).to_owned());
        }
        if self.get("port").is_none() {
            self.0.insert("port", "5432".to_owned());
        }
        if self.get("password").is_none()
            && let Some(password) = self.stored_password(variable)
        {
            self.0.insert("password", password);
        }
        Ok(())
    }

    /// The password of the password file. As for libpq, a file that other users may read has none.
    fn stored_password(&self, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
        let path = self.get("passfile").map(PathBuf::from).or_else(|| Some(home(variable)?.join(".pgpass")))?;
        if others_may_read(&path) {
            eprintln!("xdb: {} is ignored, because other users may read it: chmod 0600", path.display());
            return None;
        }
        let host = self.get("host").or(self.get("hostaddr")).unwrap_or_default();
        let host = if SOCKETS.contains(&host) { "localhost" } else { host };
        let wanted = [host, self.get("port")?, self.get("dbname")?, self.get("user")?];
        password(&std::fs::read_to_string(path).ok()?, wanted)
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        self.forget_password();
    }
}

fn home(variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o077 != 0)
}

/// The lines of a section of a service file. None: it has no such section.
fn section<'c>(content: &'c str, service: &str) -> Result<Option<Vec<(&'c str, &'c str)>>, String> {
    let mut found = None;
    for (number, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (name == service).then(Vec::new);
        } else if let Some(lines) = &mut found {
            let (name, value) =
                line.split_once('=').ok_or_else(|| format!("line {}: there is no \"=\"", number + 1))?;
            lines.push((name.trim(), value.trim()));
        }
    }
    Ok(found)
}

/// The password of the first line that fits host, port, database and user.
fn password(content: &str, wanted: [&str; 4]) -> Option<String> {
    content.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, place) = fields.split_last().filter(|(_, place)| place.len() == 4)?;
        let fits = place.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        fits.then(|| password.clone())
    })
}

/// The fields of a line of a password file. A backslash makes the next character part of the field.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let field = fields.len() - 1;
        match character {
            '\\' => fields[field].extend(characters.next()),
            ':' if field < 4 => fields.push(String::new()),
            _ => fields[field].push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(options: &[(&str, Option<&str>)], variables: &[(&str, &str)]) -> Result<Parameters, String> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Parameters::resolve(options, find)
    }

    #[test]
    fn options_win_over_the_service_and_the_service_over_variables() {
        let directory = std::env::temp_dir().join(format!("xdb-service-{}", std::process::id()));
        std::fs::write(&directory, "# ours\n[other]\nport=1\n[shop]\nport = 6000\nhost=db1\n\n[more]\nuser=x\n")
            .expect("a file");
        let path = directory.display().to_string();
        let variables = [
            ("PGSERVICE", "shop"),
            ("PGSERVICEFILE", &*path),
            ("PGPORT", "7000"),
            ("PGUSER", "app"),
            ("PGHOST", "db2"),
        ];
        let found = resolved(&[("host", Some("db3")), ("dbname", None)], &variables);
        std::fs::remove_file(&directory).expect("our file");
        let found = found.expect("all is known");
        let shown = ["host", "port", "user", "dbname"].map(|name| found.get(name).unwrap_or_default());
        assert_eq!(shown, ["db3", "6000", "app", "app"]);
    }

    #[test]
    fn what_has_no_effect_is_an_error() {
        let service = section("[s]\nsslcert=file", "s").expect("it can be read").expect("it is there");
        assert_eq!(service, [("sslcert", "file")]);
        let problem = Parameters::default().set_default("sslcert", "file").expect_err("it is unknown");
        assert_eq!(problem, "the parameter \"sslcert\" is not supported");
        let problem = resolved(&[], &[("PGSERVICE", "none"), ("HOME", "/nowhere")]).expect_err("there is none");
        assert!(problem.starts_with("the service \"none\" was not found"), "{problem}");
        let problem =
            resolved(&[], &[("PGUSER", "app"), ("PGCHANNELBINDING", "require")]).expect_err("it is no promise");
        assert_eq!(problem, "PGCHANNELBINDING is not supported: unset it");
        assert_eq!(resolved(&[], &[]), Err("no user is known: set PGUSER, or use --username".to_owned()));
    }

    #[test]
    fn a_password_file_that_others_may_read_has_no_password() {
        use std::os::unix::fs::PermissionsExt;
        let file = std::env::temp_dir().join(format!("xdb-pgpass-{}", std::process::id()));
        std::fs::write(&file, "*:*:*:app:secret\n").expect("a file");
        let path = file.display().to_string();
        let variables = [("PGPASSFILE", &*path), ("PGUSER", "app")];
        let found = [0o644, 0o600].map(|mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("our file");
            resolved(&[], &variables).expect("all is known").get("password").map(str::to_owned)
        });
        std::fs::remove_file(&file).expect("our file");
        assert_eq!(found, [None, Some("secret".to_owned())]);
    }

    #[test]
    fn a_password_file_is_read_as_libpq_reads_it() {
        let content = "# db1:*:*:*:comment\ndb1:5432:shop:app:a:b\\:c\n*:*:*:we\\:ird:other\n";
        assert_eq!(password(content, ["db1", "5432", "shop", "app"]).as_deref(), Some("a:b:c"));
        assert_eq!(password(content, ["db9", "1", "x", "we:ird"]).as_deref(), Some("other"));
        assert_eq!(password(content, ["db9", "1", "x", "app"]), None);
    }
}
