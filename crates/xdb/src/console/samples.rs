//! Samples of the counters of the database. They are taken while a visitor that may read them looks at the list.

use super::layout::text;
use super::pictures::Sample;
use crate::connection::ServerSession;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// An hour of samples.
const MOST: usize = 720;
const BETWEEN: Duration = Duration::from_secs(5);

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
        let row = session.rows(COUNTERS, &[]).await.ok()?.pop()?;
        // There are no counters before the first call.
        let figure = |column| text(&row, column).parse().unwrap_or(0.0);
        let sample = Sample { ago: 0.0, calls: figure(0), failed: figure(1), due: figure(2) };
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|(at, _)| now - *at < BETWEEN * MOST as u32);
        if all.back().is_none_or(|(at, _)| now - *at >= BETWEEN) {
            all.push_back((now, sample));
        }
        Some(all.iter().map(|(at, sample)| Sample { ago: (now - *at).as_secs_f64(), ..*sample }).collect())
    }
}
