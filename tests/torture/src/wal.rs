//! A small disk of its own for the WAL, so that it can be full while other disks are not.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Gives this process and its children mounts of their own. No other process sees the mounts, and they end with the
/// last of these processes. Call it while there is one thread, because it holds for that thread alone.
pub fn own_mounts() -> Result<(), String> {
    // SAFETY: changes the file systems that this process sees, and nothing else.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("no mounts of its own ({})", std::io::Error::last_os_error()));
    }
    run(Command::new("mount").args(["--make-rprivate", "/"]))
}

/// A file system in memory that holds `pg_wal`. Requires the right to mount it.
pub struct WalDisk {
    mounted: PathBuf,
}

/// Enough for the segments that the server keeps, and for some more.
const MEGABYTES: u32 = 256;

impl WalDisk {
    /// Moves the WAL of a stopped server. Error: why that is not possible here.
    pub fn for_cluster(directory: &Path) -> Result<WalDisk, String> {
        let mounted = directory.join("wal");
        let (old, data) = (directory.join("data/pg_wal"), directory.join("data"));
        let done = |what: &str, outcome: std::io::Result<()>| outcome.map_err(|error| format!("{what}: {error}"));
        done("mkdir", fs::create_dir(&mounted))?;
        let options = format!("size={MEGABYTES}m,mode=700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "xdb-torture-wal"]).arg(&mounted))?;
        let disk = WalDisk { mounted };
        run(Command::new("chown").arg("--reference").arg(&data).arg(&disk.mounted))?;
        run(Command::new("cp").arg("-a").arg(old.join(".")).arg(&disk.mounted))?;
        done("the old WAL", fs::remove_dir_all(&old))?;
        done("the link", std::os::unix::fs::symlink(&disk.mounted, &old))?;
        Ok(disk)
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    /// Fills the disk. Returns whether it is full.
    pub fn fill(&self) -> bool {
        let Ok(mut file) = fs::File::create(self.ballast()) else { return false };
        let megabyte = vec![0_u8; 1 << 20];
        for _ in 0..=MEGABYTES {
            if file.write_all(&megabyte).is_err() {
                return true;
            }
        }
        false
    }

    /// Frees the space again.
    pub fn clear(&self) {
        match fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => eprintln!("the ballast stays: {error}"),
            _ => {}
        }
    }
}

/// Copies the WAL back and unmounts. The server must be stopped.
impl Drop for WalDisk {
    fn drop(&mut self) {
        self.clear();
        let Some(directory) = self.mounted.parent() else { return };
        let link = directory.join("data/pg_wal");
        let outcome = run(Command::new("cp").arg("-a").arg(&self.mounted).arg(directory.join("wal-kept")))
            .and_then(|()| fs::remove_file(&link).map_err(|error| error.to_string()))
            .and_then(|()| fs::rename(directory.join("wal-kept"), &link).map_err(|error| error.to_string()))
            .and_then(|()| run(Command::new("umount").arg(&self.mounted)));
        if let Err(problem) = outcome {
            eprintln!("{} stays mounted: {problem}", self.mounted.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
