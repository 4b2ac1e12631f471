//! Who is logged in: sessions of browsers, each with a connection of its own, and failed logins.
//!
//! The role of the connection decides what a visitor sees and does. Nothing that one visitor has read is kept for
//! another.

use crate::connection::{ServerSession, Trouble};
use crate::environment::Parameters;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A visit ends after this time without a request of a person, and after the second time in any case.
const IDLE: Duration = Duration::from_secs(30 * 60);
const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// How long a visit without requests may stay after its time.
const CHECKED_EVERY: Duration = Duration::from_secs(60);

/// Connections of all visits together.
const MOST_CONNECTIONS: usize = 16;

/// Visits of one role, so that it leaves places for others.
const MOST_OF_ROLE: usize = 8;

/// Failed logins in a minute.
const MOST_FAILURES: usize = 5;
const FAILURES_COUNT_FOR: Duration = Duration::from_secs(60);

/// A logged-in browser.
pub struct Visit {
    pub role: String,
    pub database: String,
    parameters: Parameters,
    /// Opened at the login, and again after it was lost.
    pub connection: tokio::sync::Mutex<Option<ServerSession>>,
    began: Instant,
    used: Mutex<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    fn is_over(&self, now: Instant) -> bool {
        now - *lock(&self.used) > IDLE || now - self.began > LONGEST
    }

    /// The parameters of the visit's connections.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

pub struct Visits {
    all: Mutex<HashMap<String, Arc<Visit>>>,
    failures: Mutex<Vec<Instant>>,
    places: Arc<Semaphore>,
}

impl Default for Visits {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        Visits { all: Mutex::default(), failures: Mutex::default(), places }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A name that can't be guessed: 128 random bits.
pub fn secret() -> Result<String, Trouble> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| Trouble::new(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Visits {
    fn end_those_over(&self, now: Instant) {
        lock(&self.all).retain(|_, visit| !visit.is_over(now));
    }

    /// Ends visits whose time is over, with their passwords and connections, also while there are no requests. Runs for
    /// ever.
    pub async fn end_in_time(&self) {
        loop {
            tokio::time::sleep(CHECKED_EVERY).await;
            self.end_those_over(Instant::now());
        }
    }

    /// The visit with this name, unless it is over. Its time begins again.
    pub fn find(&self, name: &str) -> Option<Arc<Visit>> {
        let visit = self.look_at(name)?;
        *lock(&visit.used) = Instant::now();
        Some(visit)
    }

    /// The visit with this name, unless it is over. For requests that no person has made.
    pub fn look_at(&self, name: &str) -> Option<Arc<Visit>> {
        self.end_those_over(Instant::now());
        lock(&self.all).get(name).cloned()
    }

    /// Takes the place of a connection for a new visit.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        self.end_those_over(Instant::now());
        let taken = Arc::clone(&self.places).try_acquire_owned();
        taken.map_err(|_| {
            Trouble::new(format!(
                "all {MOST_CONNECTIONS} connections of the console are in use: log out elsewhere first"
            ))
        })
    }

    /// Begins a visit with an open connection. Returns its name, for the cookie.
    pub fn begin(
        &self,
        parameters: Parameters,
        session: ServerSession,
        place: OwnedSemaphorePermit,
    ) -> Result<String, Trouble> {
        let (name, now) = (secret()?, Instant::now());
        let visit = Visit {
            role: parameters.get("user").unwrap_or_default().to_owned(),
            database: session.database.clone(),
            parameters,
            connection: tokio::sync::Mutex::new(Some(session)),
            began: now,
            used: Mutex::new(now),
            _place: place,
        };
        self.admit(&name, visit);
        Ok(name)
    }

    /// If the role has too many visits, the one that was not used for the longest time ends.
    fn admit(&self, name: &str, visit: Visit) {
        let mut all = lock(&self.all);
        let of_role = || all.iter().filter(|(_, other)| other.role == visit.role);
        if of_role().count() >= MOST_OF_ROLE {
            let oldest = of_role().min_by_key(|(_, other)| *lock(&other.used)).map(|(name, _)| name.clone());
            oldest.and_then(|name| all.remove(&name));
        }
        all.insert(name.to_owned(), Arc::new(visit));
    }

    pub fn end(&self, name: &str) {
        lock(&self.all).remove(name);
    }

    /// Whether a login may be tried now. Each try counts as a failure until [`Visits::succeeded`]. All requests come from
    /// this machine, which has many addresses, so they are counted together.
    pub fn may_try(&self) -> bool {
        let now = Instant::now();
        let mut failures = lock(&self.failures);
        failures.retain(|time| now - *time < FAILURES_COUNT_FOR);
        let may = failures.len() < MOST_FAILURES;
        if may {
            failures.push(now);
        }
        may
    }

    /// The last try was no failure.
    pub fn succeeded(&self) {
        lock(&self.failures).pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_minute_are_enough() {
        let visits = Visits::default();
        for _ in 0..20 {
            assert!(visits.may_try(), "a login that succeeds is no failure");
            visits.succeeded();
        }
        assert!((0..MOST_FAILURES).all(|_| visits.may_try()));
        assert!(!visits.may_try());
    }

    fn visit(visits: &Visits, name: &str) {
        visit_of("app", visits, name);
    }

    fn visit_of(role: &str, visits: &Visits, name: &str) {
        let now = Instant::now();
        let visit = Visit {
            role: role.to_owned(),
            database: "shop".to_owned(),
            parameters: Parameters::default(),
            connection: tokio::sync::Mutex::new(None),
            began: now,
            used: Mutex::new(now),
            _place: visits.place().expect("there is a place"),
        };
        visits.admit(name, visit);
    }

    #[tokio::test(start_paused = true)]
    async fn a_visit_ends_after_half_an_hour_without_a_request_and_after_twelve_hours() {
        const MINUTE: Duration = Duration::from_secs(60);
        let visits = Visits::default();
        visit(&visits, "idle");
        tokio::time::advance(30 * MINUTE).await;
        assert!(visits.find("idle").is_some());
        tokio::time::advance(30 * MINUTE).await;
        assert!(visits.look_at("idle").is_some(), "an open page reads itself again");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(visits.look_at("idle").is_none());
        visit(&visits, "busy");
        for _ in 0..36 {
            assert!(visits.find("busy").is_some());
            tokio::time::advance(20 * MINUTE).await;
        }
        assert!(visits.find("busy").is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(visits.find("busy").is_none());
        assert_eq!(visits.places.available_permits(), MOST_CONNECTIONS, "its connection is free");
    }

    #[tokio::test(start_paused = true)]
    async fn a_visit_ends_without_any_request() {
        let visits = Arc::new(Visits::default());
        visit(&visits, "idle");
        let ending = Arc::clone(&visits);
        tokio::spawn(async move { ending.end_in_time().await });
        tokio::time::sleep(IDLE).await;
        assert_eq!(visits.places.available_permits(), MOST_CONNECTIONS - 1);
        tokio::time::sleep(CHECKED_EVERY + Duration::from_secs(1)).await;
        assert_eq!(visits.places.available_permits(), MOST_CONNECTIONS, "its connection is free");
    }

    #[test]
    fn there_are_sixteen_connections_and_each_visit_has_one() {
        let visits = Visits::default();
        (0..16).for_each(|n| visit_of(if n % 2 == 0 { "even" } else { "odd" }, &visits, &n.to_string()));
        let refused = visits.place().expect_err("all are in use").message;
        assert!(refused.starts_with("all 16 connections of the console are in use"), "{refused}");
        visits.end("7");
        assert!(visits.place().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_has_eight_visits_and_then_loses_the_one_that_was_not_used_for_the_longest_time() {
        let visits = Visits::default();
        visit_of("other", &visits, "other");
        for n in 0..9 {
            tokio::time::advance(Duration::from_secs(1)).await;
            visit(&visits, &n.to_string());
            assert!(visits.find("0").is_some());
        }
        assert!(visits.find("1").is_none() && visits.find("other").is_some());
        assert_eq!(visits.places.available_permits(), MOST_CONNECTIONS - 9);
    }

    #[test]
    fn names_of_visits_differ() {
        let names: std::collections::HashSet<_> = (0..100).map(|_| secret().expect("there are random bytes")).collect();
        assert!(names.len() == 100 && names.iter().all(|name| name.len() == 32));
    }
}
