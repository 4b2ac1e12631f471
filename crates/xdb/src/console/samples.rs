//! Samples of the counters of the database. They are taken while a visitor that may read them looks at the list.

use super::layout::text;
use super::pictures::Sample;
use crate::connection::ServerSession;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// An hour of samples.
const MOST: usize = 720;
const BETWEEN: Duration = Duration::from_secs(5);

/// Whether the server lets a role read the counters. Without this query, each refusal would be an error in its log.
const MAY: &str = "SELECT true::text \
    WHERE pg_has_role('pg_monitor', 'USAGE') OR has_function_privilege('xdb.pause_engine()', 'EXECUTE')";

const COUNTERS: &str = "SELECT (sum(value) FILTER (WHERE name = 'xdb_calls_total'))::text, \
        (sum(value) FILTER (WHERE name = 'xdb_calls_total' AND labels ->> 'outcome' <> 'ok'))::text, \
        (sum(value) FILTER (WHERE name = 'xdb_calls_due'))::text \
    FROM xdb.metrics()";

/// The samples of the last hour. All visitors have the same database.
#[derive(Default)]
pub struct Samples(Mutex<VecDeque<(Instant, Sample)>>);

impl Samples {
    /// The samples, with a new one if the last one is old enough. None: the visitor's role may not read the counters.
    pub async fn read(&self, session: &ServerSession) -> Option<Vec<Sample>> {
        session.value(MAY, &[]).await.ok()??;
        if self.is_due() {
            let row = session.rows(COUNTERS, &[]).await.ok()?.pop()?;
            // There are no counters before the first call.
            let figure = |column| text(&row, column).parse().unwrap_or(0.0);
            let sample = Sample { ago: 0.0, calls: figure(0), failed: figure(1), due: figure(2) };
            // Another visitor may have taken one meanwhile.
            if self.is_due() {
                self.lock().push_back((Instant::now(), sample));
            }
        }
        let (now, mut all) = (Instant::now(), self.lock());
        all.retain(|(at, _)| now - *at < BETWEEN * MOST as u32);
        Some(all.iter().map(|(at, sample)| Sample { ago: (now - *at).as_secs_f64(), ..*sample }).collect())
    }

    fn is_due(&self) -> bool {
        self.lock().back().is_none_or(|(at, _)| at.elapsed() >= BETWEEN)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Sample)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
