//! Who may have which locks, judged from what the tables say of some objects.
//!
//! A request names all of its objects at once and gets all of them or none: who waits holds nothing, so requests of
//! states can't deadlock. Each has a ticket, and is served before all later ones that it conflicts with.

use crate::lock_table::{Mode, Object};
use std::collections::{BTreeSet, HashMap};

/// The place of a caller's RPC at an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallersPlace {
    pub mode: Mode,
    pub ticket: i64,
    pub granted: bool,
}

/// What stands in the way at one object.
#[derive(Clone, Debug, Default)]
struct Standing {
    granted: BTreeSet<Mode>,
    parked: BTreeSet<(i64, Mode)>,
    callers: Vec<CallersPlace>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Granted,
    /// States are in the way. When one of them goes, its objects are offered.
    BehindStates,
    /// Callers alone are in the way, at this object. Nobody writes down when they go.
    BehindCaller(Object),
}

/// What is known of some objects.
#[derive(Clone, Debug, Default)]
pub struct Board {
    objects: HashMap<Object, Standing>,
}

impl Board {
    pub fn note_granted(&mut self, object: Object, mode: Mode) {
        self.objects.entry(object).or_default().granted.insert(mode);
    }

    pub fn note_parked(&mut self, object: Object, mode: Mode, ticket: i64) {
        self.objects.entry(object).or_default().parked.insert((ticket, mode));
    }

    pub fn note_caller(&mut self, object: Object, place: CallersPlace) {
        self.objects.entry(object).or_default().callers.push(place);
    }

    /// Whether a request may have all of its objects now. Its own place among the parked ones is not in its way.
    pub fn judge(&self, wanted: &[(Object, Mode)], ticket: i64) -> Verdict {
        let mut behind_caller = None;
        for (object, mode) in wanted {
            let Some(standing) = self.objects.get(object) else { continue };
            let earlier = || standing.parked.iter().take_while(|(other, _)| *other < ticket);
            if standing.granted.iter().any(|other| mode.conflicts(*other))
                || earlier().any(|(_, other)| mode.conflicts(*other))
            {
                return Verdict::BehindStates;
            }
            let in_the_way =
                |caller: &CallersPlace| mode.conflicts(caller.mode) && (caller.granted || caller.ticket < ticket);
            if standing.callers.iter().any(in_the_way) {
                behind_caller = Some(*object);
            }
        }
        behind_caller.map_or(Verdict::Granted, Verdict::BehindCaller)
    }

    /// The request has its objects from now on.
    pub fn grant(&mut self, wanted: &[(Object, Mode)]) {
        for (object, mode) in wanted {
            self.note_granted(*object, *mode);
        }
    }

    /// The request waits and is in the way of later ones.
    pub fn park(&mut self, wanted: &[(Object, Mode)], ticket: i64) {
        for (object, mode) in wanted {
            self.note_parked(*object, *mode, ticket);
        }
    }

    /// The request keeps its ticket, and is in nobody's way until it has asked again.
    pub fn unpark(&mut self, wanted: &[(Object, Mode)], ticket: i64) {
        for (object, mode) in wanted {
            if let Some(standing) = self.objects.get_mut(object) {
                standing.parked.remove(&(ticket, *mode));
            }
        }
    }
}
