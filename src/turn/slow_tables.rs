//! Users' tables, and functions that answers call, that are slow. The scheduler finds out which are, and leaves their steps to runners; runners find out which
//! are no more. What has to last are rows of `xdb.slow_object`.

use super::role::{RUNNERS_CALLS, Role, apply_timeout};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::spi::Spi;
use crate::store::StateKey;
use crate::store::slow::{self, Marks};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use xdb_sched::slow::{Mark, Probes, Watcher};
use xdb_sched::table_health::Relation;

/// Of so many calls it is known how long tables were read for them.
const READS_KEPT: usize = 4 * RUNNERS_CALLS;

/// How long tables were used.
pub type Times = BTreeMap<Relation, Duration>;

/// What a process knows of slow tables.
pub enum SlowTables {
    Watched {
        tables: Watcher,
        /// Roles: who dies in their steps shall be a runner from then on, whatever table it is.
        roles: Watcher,
    },
    Probed {
        probes: Probes,
        /// Those of which steps in any table are runners'.
        roles: HashSet<u32>,
        /// For how long tables were read for calls that are under way.
        read: HashMap<StateKey, Times>,
        /// What probes of this turn have shown.
        found: Vec<(Relation, Mark)>,
    },
}

impl SlowTables {
    pub fn of(role: Role) -> Self {
        match role {
            Role::Scheduler => Self::Watched { tables: Watcher::default(), roles: Watcher::default() },
            Role::Runner(_) => Self::Probed {
                probes: Probes::default(),
                roles: HashSet::new(),
                read: HashMap::new(),
                found: Vec::new(),
            },
        }
    }

    /// A turn begins, and the rows say this. What the scheduler has found out is written down. Says whether anything is slow.
    pub fn begin_turn(&mut self, spi: &Spi, marked: Marks) -> Result<bool> {
        let now = Instant::now();
        let marks: HashMap<_, _> = marked.tables.iter().map(|(relation, marked)| (*relation, marked.mark)).collect();
        let mut any = marks.values().chain(marked.roles.values()).any(|mark| !mark.is_mended);
        match self {
            Self::Watched { tables, roles } => {
                let (found, found_roles) = (tables.begin_turn(marks, now), roles.begin_turn(marked.roles, now));
                any |= !found.is_empty() || !found_roles.is_empty();
                for (role, mark) in found_roles {
                    slow::mark_role(spi, role, mark)?;
                    pgrx::log!(
                        "xdb: a process ended because of a step of role {role}; its steps in tables are a runner's for a while"
                    );
                }
                for (relation, mark) in found {
                    let kind = slow::mark(spi, relation, mark)?;
                    crash::point("turn-mark-slow");
                    pgrx::log!("xdb: {kind} {relation} is slow: {}; its steps are a runner's", mark.reason.as_str());
                }
            }
            Self::Probed { probes, roles, found, .. } => {
                found.clear();
                *roles = marked.roles.into_iter().filter(|(_, mark)| !mark.is_mended).map(|(role, _)| role).collect();
                probes.follow(&marks, |relation| marked.tables.get(relation).map_or(Duration::ZERO, |m| m.age), now);
            }
        }
        Ok(any)
    }

    /// Writes down what probes of this turn have shown.
    pub fn write(&self, spi: &Spi) -> Result<()> {
        let Self::Probed { found, .. } = self else { return Ok(()) };
        for (relation, mark) in found {
            let kind = slow::probed(spi, *relation, *mark)?;
            crash::point("turn-probe");
            if mark.is_mended {
                pgrx::log!("xdb: {kind} {relation} is not slow any more");
            }
        }
        Ok(())
    }

    /// Whether anything is slow.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Watched { tables, roles } => tables.is_any() || roles.is_any(),
            Self::Probed { probes, roles, .. } => probes.is_any() || !roles.is_empty(),
        }
    }

    /// Whether its steps are a runner's.
    pub fn is_slow(&self, relation: Relation) -> bool {
        match self {
            Self::Watched { tables, .. } => tables.is_slow(&relation),
            Self::Probed { probes, .. } => probes.is_slow(&relation),
        }
    }

    /// Whether this role's steps are a runner's, whatever table they use.
    pub fn is_deadly(&self, role: u32) -> bool {
        match self {
            Self::Watched { roles, .. } => roles.is_slow(&role),
            Self::Probed { roles, .. } => roles.contains(&role),
        }
    }

    /// Whether this process may not use any table for this role.
    pub fn keeps_role_away(&self, role: u32) -> bool {
        matches!(self, Self::Watched { .. }) && self.is_deadly(role)
    }

    /// Until when this process may not use it: the scheduler as long as it is slow, a runner where processes died in it.
    pub fn kept_until(&self, relation: Relation) -> Option<Kept> {
        match self {
            Self::Watched { tables, .. } => tables.is_slow(&relation).then_some(Kept::Away),
            Self::Probed { probes, .. } => probes.kept_until(&relation, Instant::now()).map(Kept::Until),
        }
    }

    /// Tables were used for so long, whatever came of it.
    pub fn used(&mut self, times: &Times) {
        if let Self::Watched { tables, .. } = self {
            let now = Instant::now();
            times.iter().for_each(|(relation, took)| tables.used(*relation, *took, now));
        }
    }

    /// What was read for a call belongs to the step that begins.
    pub fn step_read(&mut self, key: StateKey, times: &Times) {
        if let Self::Probed { read, .. } = self {
            // Of calls whose answers never came.
            if read.len() >= READS_KEPT {
                read.clear();
            }
            read.insert(key, times.clone());
        }
    }

    /// A step has used tables for so long, besides what was read for it.
    pub fn step_ended(&mut self, key: StateKey, times: &Times) {
        if let Self::Probed { probes, read, found, .. } = self {
            let mut step = read.remove(&key).unwrap_or_default();
            for (relation, took) in times {
                *step.entry(*relation).or_default() += *took;
            }
            let now = Instant::now();
            for (relation, took) in step {
                found.extend(probes.used(relation, took, apply_timeout(), now).map(|mark| (relation, mark)));
            }
        }
    }

    /// The limit has ended a use of it.
    pub fn ran_into_limit(&mut self, relation: Relation) {
        if let Self::Watched { tables, .. } = self {
            tables.ran_into_limit(relation);
        }
    }

    /// A process has died in it, in a step of this role; or of what its steps have left behind.
    pub fn died_in(&mut self, relation: Option<Relation>, role: u32) {
        if let Self::Watched { tables, roles } = self {
            relation.into_iter().for_each(|relation| tables.died_in(relation));
            roles.died_in(role);
        }
    }
}

/// How a process is kept from a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is somebody else's.
    Away,
    /// Nobody uses it before.
    Until(Instant),
}
