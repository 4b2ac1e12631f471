//! Names of settings that users' triggers make (`set_config('app.' || n, ...)`) stay in a process until it ends, and each use of users'
//! tables goes through all of them. When they are too many the process ends, and another one begins.

use crate::pg::settings;
use crate::pg::shmem::{Role, Slot};
use std::time::{Duration, Instant};

/// So many more than at the begin are too many: each use of users' tables takes a tenth of a millisecond more, or so.
const MOST: usize = 5000;

/// How often they are counted.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Calls under way are made again after the end: while there are some, the end comes at most so often.
const LIFE: Duration = Duration::from_secs(60);

/// Those calls are made for nothing, and one that takes longer than [`LIFE`] would never end. So the role whose steps have made the most
/// names is told to the next scheduler, and its steps are a runner's for a while, unless they took so long.
const SLOWLY: Duration = Duration::from_secs(3600);

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
    pub fn are_too_many(&mut self, slot: Slot, has_calls: bool) -> bool {
        if self.looked.elapsed() < POLL_EVERY {
            return false;
        }
        self.looked = Instant::now();
        let made = settings::known_names().saturating_sub(self.at_begin);
        // Where the server does not know their number, only from here on: to count them costs something.
        let are_counted = made > MOST / 10 && settings::count_names();
        if made <= MOST || has_calls && (self.began.elapsed() < LIFE || !are_counted) {
            return false;
        }
        if has_calls
            && slot.role() == Role::Scheduler
            && self.began.elapsed() < SLOWLY
            && let Some(role) = settings::who_made_names()
        {
            slot.note_ends_for(role.to_u32());
        }
        pgrx::log!(
            "xdb: an engine process ends because triggers have made {made} names of settings in it; another one begins"
        );
        true
    }
}
