//! `pg_upgrade`: moves a cluster to the programs of a later major version.

use std::fs;

use crate::cluster::Cluster;
use crate::install;

impl Cluster {
    /// Upgrades this stopped cluster to the server of another `pg_config`, and starts it.
    pub fn upgrade(&self, pg_config: &str) {
        let new_bindir = install::bindir_of(pg_config);
        let (old_data, new_data) = (self.data_directory(), self.directory().join("data-new"));
        // Both have to be alike, and the default is not the same in all versions.
        let known = install::output(install::program(&new_bindir, "initdb").arg("--help"));
        let options: &[&str] = if known.contains("--no-data-checksums") { &["--no-data-checksums"] } else { &[] };
        install::init_data_directory(&new_bindir, &new_data, options);
        self.configure(&new_data);
        let old_bindir = self.bindir.lock().expect("never poisoned").clone();
        let mut command = install::program(&new_bindir, "pg_upgrade");
        // It leaves files where it runs.
        command.current_dir(self.directory()).arg("--username=postgres");
        command.arg("--socketdir").arg(self.socket_directory());
        for (option, value) in [
            ("--old-bindir", &old_bindir),
            ("--new-bindir", &new_bindir),
            ("--old-datadir", &old_data),
            ("--new-datadir", &new_data),
        ] {
            command.arg(option).arg(value);
        }
        install::run(&mut command);
        fs::rename(&old_data, self.directory().join("data-old")).expect("a directory of ours");
        fs::rename(&new_data, &old_data).expect("a directory of ours");
        *self.bindir.lock().expect("never poisoned") = new_bindir;
        self.launch();
    }
}
