//! Names of settings that users' triggers make (`set_config('app.' || n, ...)`) stay in a process until it ends, and each use of users'
//! tables goes through all of them. When they are too many the process ends, and another one begins.

use crate::pg::settings;
use std::time::{Duration, Instant};

/// So many more than at the begin are too many: each use of users' tables takes a tenth of a millisecond more, or so.
const MOST: usize = 5000;

/// How often they are counted.
const LOOK: Duration = Duration::from_secs(5);

/// Calls under way are made again after the end: while there are some, the end comes at most so often.
const LIFE: Duration = Duration::from_secs(60);

pub struct SettingNames {
    at_begin: usize,
    began: Instant,
    looked: Instant,
}

impl SettingNames {
    /// To be made when the process begins.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { at_begin: settings::known_names(), began: now, looked: now }
    }

    /// Whether the process is to end for the sake of those that come after it. Says so in the log.
    pub fn are_too_many(&mut self, has_calls: bool) -> bool {
        if self.looked.elapsed() < LOOK || has_calls && self.began.elapsed() < LIFE {
            return false;
        }
        self.looked = Instant::now();
        let made = settings::known_names().saturating_sub(self.at_begin);
        if made > MOST {
            pgrx::log!(
                "xdb: an engine process ends because triggers have made {made} names of settings in it; another one begins"
            );
        }
        made > MOST
    }
}
