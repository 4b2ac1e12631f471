//! `xdb show`: why is a process where it is?

use crate::connection::{ServerSession, Trouble};
use crate::sentence::{Explanation, explain, last_failure, started};
use crate::text::{plain, quoted};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The document of the process, with what the sentences need besides, and the present moment of processes.
const READ: &str = "SELECT (d.document || jsonb_build_object( \
        'typeMissing', NOT EXISTS (SELECT FROM xdb.process_types t WHERE t.process_type = d.document ->> 'processType'), \
        'threads', (SELECT COALESCE(jsonb_agg(e.thread || CASE WHEN w.name IS NULL THEN '{}' ELSE '{\"pulls\": true}' END::jsonb ORDER BY e.n), '[]') \
            FROM jsonb_array_elements(d.document -> 'threads') WITH ORDINALITY AS e (thread, n) \
            LEFT JOIN xdb.workers w ON w.name = e.thread ->> 'worker' AND w.url IS NULL AND w.registered_at IS NOT NULL)))::text, \
        to_char((clock_timestamp() + COALESCE(NULLIF(current_setting('xdb.now', true), ''), '0')::interval) AT TIME ZONE 'UTC', \
            'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') \
    FROM (SELECT xdb.describe_process($1, $2::uuid) AS document) AS d";

/// What the program says about the engine, if it does not run.
const ENGINE: &str = "SELECT concat_ws(': ', state, reason) FROM xdb.status() WHERE state <> 'running'";

/// Everything that is shown about a process.
pub struct Shown {
    pub process: Value,
    /// Why the engine does not run. None: it runs.
    pub engine: Option<String>,
    pub now: Timestamp,
    pub sentences: Vec<Explanation>,
}

/// Reads a process. The error of a process that does not exist has the code `XD001`.
pub async fn read(session: &ServerSession, process_id: &str, execution: Option<&str>) -> Result<Shown, Trouble> {
    let rows = session.rows(READ, &[Some(process_id), execution]).await?;
    let [Some(document), Some(now)] = rows.first().map_or(&[][..], Vec::as_slice) else {
        return Err(Trouble::new("xdb.describe_process() gave nothing"));
    };
    let unreadable = |problem: String| Trouble::new(format!("the answer of the server can't be read: {problem}"));
    let process: Value = serde_json::from_str(document).map_err(|error| unreadable(error.to_string()))?;
    let now: Timestamp = now.parse().map_err(|error: jiff::Error| unreadable(error.to_string()))?;
    let engine = session.value(ENGINE, &[]).await?;
    let sentences = explain(&process, now);
    Ok(Shown { process, engine, now, sentences })
}

impl Shown {
    /// For people.
    pub fn text(&self) -> String {
        let of = |key: &str| self.process[key].as_str().unwrap_or_default();
        let priority =
            self.process["priority"].as_i64().map_or_else(String::new, |priority| format!(", priority {priority}"));
        let mut lines = vec![
            format!(
                "Process {} of type {}, owner {}",
                quoted(of("processId")),
                quoted(of("processType")),
                quoted(of("owner"))
            ),
            format!(
                "Execution {}, {}, started {}{priority}",
                of("processExecutionId"),
                of("status"),
                started(&self.process, self.now).unwrap_or_default()
            ),
        ];
        if let Some(parent) = self.process["parent"]["processId"].as_str() {
            lines.push(format!("Child of {}", quoted(parent)));
        }
        lines.push(String::new());
        lines.push("Why is it where it is?".to_owned());
        for Explanation { step, sentence, .. } in &self.sentences {
            let step = step.as_ref().map_or_else(String::new, |step| format!("{}: ", plain(step)));
            lines.push(format!("  {step}{sentence}"));
        }
        if let Some(failure) = last_failure(&self.process, self.now) {
            lines.push(format!("\nLast failure: {failure}"));
        }
        if let Some(engine) = &self.engine {
            lines.push(format!("\nThe engine of this database is {engine}"));
        }
        lines.join("\n") + "\n"
    }

    /// For programs: the sentences, and the document of the process.
    pub fn json(&self) -> Value {
        let sentences: Vec<_> = self.sentences.iter().map(Explanation::json).collect();
        json!({"sentences": sentences, "engine": self.engine, "now": self.now.to_string(), "process": self.process})
    }
}
