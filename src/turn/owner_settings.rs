//! Custom settings of owners (`ALTER ROLE … SET app.tenant`), which hold while their steps use tables. They are kept
//! for some seconds, so that a step needs no statement to read them.
//!
//! Limitations: a change takes effect after up to 10 seconds.

use crate::pg::catch::Result;
use crate::pg::identity::Setting;
use crate::pg::spi::Spi;
use crate::store::role_settings;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// After this time a change is seen.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Above this number of owners, settings that are too old are removed.
const REMEMBERED: usize = 1000;

/// The settings of owners that used tables recently.
#[derive(Default)]
pub struct OwnerSettings {
    known: HashMap<pg_sys::Oid, CachedSettings>,
}

struct CachedSettings {
    read_at: Instant,
    settings: Rc<[Setting]>,
}

impl OwnerSettings {
    /// The settings of an owner.
    pub fn of(&mut self, spi: &Spi, owner: pg_sys::Oid) -> Result<Rc<[Setting]>> {
        let now = Instant::now();
        let is_fresh = |known: &CachedSettings| now.duration_since(known.read_at) < KEPT_FOR;
        if let Some(known) = self.known.get(&owner).filter(|known| is_fresh(known)) {
            return Ok(known.settings.clone());
        }
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, known| is_fresh(known));
        }
        let settings: Rc<[Setting]> = role_settings::custom_settings(spi, owner)?.into();
        self.known.insert(owner, CachedSettings { read_at: now, settings: settings.clone() });
        Ok(settings)
    }
}
