//! Owners' own settings of custom parameters (`ALTER ROLE … SET app.tenant`), which hold where their steps use tables. Kept for a
//! while, so that a step does not ask for them.

use crate::pg::catch::Result;
use crate::pg::identity::Setting;
use crate::pg::spi::Spi;
use crate::store::role_settings;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// After this a change is seen at the latest.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// When more owners are remembered, those whose settings would be read again anyway are forgotten.
const REMEMBERED: usize = 1000;

#[derive(Default)]
pub struct OwnerSettings {
    known: HashMap<pg_sys::Oid, Known>,
}

struct Known {
    read_at: Instant,
    settings: Rc<[Setting]>,
}

impl OwnerSettings {
    pub fn of(&mut self, spi: &Spi, owner: pg_sys::Oid) -> Result<Rc<[Setting]>> {
        let now = Instant::now();
        let is_fresh = |known: &Known| now.duration_since(known.read_at) < KEPT_FOR;
        if let Some(known) = self.known.get(&owner).filter(|known| is_fresh(known)) {
            return Ok(known.settings.clone());
        }
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, known| is_fresh(known));
        }
        let settings: Rc<[Setting]> = role_settings::custom_settings(spi, owner)?.into();
        self.known.insert(owner, Known { read_at: now, settings: settings.clone() });
        Ok(settings)
    }
}
