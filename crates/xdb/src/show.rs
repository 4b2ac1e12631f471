//! `xdb show`: why is a process where it is?

use crate::connection::{ServerSession, Trouble};
use crate::sentence::{Explanation, explain, last_failure, started};
use crate::text::{plain, quoted};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The documents of processes, each with what the sentences need besides, and the present moment of processes. Results are
/// data of the application: their numbers may have more digits than those of this program, so they stay text.
const READ: &str = "SELECT (a.document - 'results')::text, \
        to_char((clock_timestamp() + COALESCE(NULLIF(current_setting('xdb.now', true), ''), '0')::interval) AT TIME ZONE 'UTC', \
            'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
        a.document::text \
    FROM jsonb_to_recordset($1::jsonb) AS p (process_id text, execution_id uuid) \
        CROSS JOIN LATERAL (SELECT xdb.describe_process(p.process_id, p.execution_id) AS document) AS d \
        CROSS JOIN (SELECT array_agg(name) AS pulling FROM xdb.workers WHERE url IS NULL AND registered_at IS NOT NULL) AS w \
        CROSS JOIN LATERAL (SELECT d.document || jsonb_build_object( \
        'typeMissing', NOT EXISTS (SELECT FROM xdb.process_types t WHERE t.process_type = d.document ->> 'processType'), \
        'threads', (SELECT COALESCE(jsonb_agg(e.thread || CASE WHEN e.thread ->> 'worker' = ANY (w.pulling) THEN '{\"pulls\": true}' ELSE '{}' END::jsonb ORDER BY e.n), '[]') \
            FROM jsonb_array_elements(d.document -> 'threads') WITH ORDINALITY AS e (thread, n))) AS document) AS a";

/// What the program says about the engine, if it does not run.
const ENGINE: &str = "SELECT concat_ws(': ', state, reason) FROM xdb.status() WHERE state <> 'running'";

/// Everything that is shown about a process.
pub struct Shown {
    /// Without its results.
    pub process: Value,
    /// With its results, as the server has written it.
    document: String,
    /// Why the engine does not run. None: it runs.
    pub engine: Option<String>,
    pub now: Timestamp,
    pub sentences: Vec<Explanation>,
}

/// Reads processes: pairs of a process id and an execution, or None for its latest one. Returns each document without its
/// results, the moment that it is of, and the text of the whole document.
pub async fn documents(
    session: &ServerSession,
    processes: &[(&str, Option<&str>)],
) -> Result<Vec<(Value, Timestamp, String)>, Trouble> {
    let named = processes.iter().map(|(id, execution)| json!({"process_id": id, "execution_id": execution}));
    let named = Value::from_iter(named).to_string();
    let unreadable = |problem: String| Trouble::new(format!("the answer of the server can't be read: {problem}"));
    let read = |row: Vec<Option<String>>| {
        let Ok([Some(process), Some(now), Some(document)]) = <[_; 3]>::try_from(row) else {
            return Err(unreadable("it is empty".to_owned()));
        };
        let process = serde_json::from_str(&process).map_err(|error| unreadable(error.to_string()))?;
        let now = now.parse().map_err(|error: jiff::Error| unreadable(error.to_string()))?;
        Ok((process, now, document))
    };
    session.rows(READ, &[Some(&named)]).await?.into_iter().map(read).collect()
}

/// Reads a process. The error of a process that does not exist has the code `XD001`.
pub async fn read(session: &ServerSession, process_id: &str, execution: Option<&str>) -> Result<Shown, Trouble> {
    let found = documents(session, &[(process_id, execution)]).await?.pop();
    let (process, now, document) = found.ok_or_else(|| Trouble::new("xdb.describe_process() gave nothing"))?;
    let engine = session.value(ENGINE, &[]).await?;
    let sentences = explain(&process, now);
    Ok(Shown { process, document, engine, now, sentences })
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
    pub fn json(&self) -> String {
        let sentences = Value::from_iter(self.sentences.iter().map(Explanation::json));
        let (engine, now) = (json!(self.engine), json!(self.now.to_string()));
        format!(r#"{{"engine":{engine},"now":{now},"process":{},"sentences":{sentences}}}"#, self.document)
    }
}
