//! Checks that the results of a run are right. The figures of a run with a violation don't count.

use std::collections::BTreeMap;

use xdb_cluster_tests::db::{Db, literal};

use crate::lab::Stage;
use crate::worker::Worker;

/// The expected result of the processes whose ids begin with `prefix`.
pub struct Expected<'a> {
    pub prefix: &'a str,
    pub processes: u64,
    /// Steps of all processes together.
    pub states: u64,
    /// The result of each process, as JSON.
    pub output: &'a str,
}

impl Expected<'_> {
    /// Checks that every process has completed with its output after this number of states. A sample must agree with
    /// its history.
    pub fn check(&self, stage: &Stage<'_>) -> Result<(), String> {
        let mut db = stage.superuser();
        let like = literal(&format!("{}%", self.prefix));
        let mut found = counts(
            &mut db,
            &format!(
                "SELECT 'processes', count(*) FROM xdb.processes WHERE process_id LIKE {like} UNION ALL
                 SELECT 'completed', count(*) FROM xdb.processes WHERE process_id LIKE {like} AND status = 'COMPLETED'
                 UNION ALL
                 SELECT 'with the right output', count(*) FROM xdb.processes
                 WHERE process_id LIKE {like} AND result = {}::jsonb",
                literal(self.output)
            ),
        );
        found.append(&mut counts(
            &mut db,
            &format!(
                "SELECT 'states', count(*)
                 FROM xdb.state_execution s JOIN xdb.process_execution p USING (execution_id)
                 WHERE p.process_id LIKE {like} AND s.status = 'COMPLETED'"
            ),
        ));
        let processes = self.processes as i64;
        let expected = [
            ("processes", processes),
            ("completed", processes),
            ("with the right output", processes),
            ("states", self.states as i64),
        ];
        for (name, count) in expected {
            if found[name] != count {
                return Err(format!("{name}: {} where {count} were expected, of {}%", found[name], self.prefix));
            }
        }
        sound(stage, self.prefix)
    }
}

/// Checks that a sample of the processes whose ids begin with `prefix` agrees with its history.
pub fn sound(stage: &Stage<'_>, prefix: &str) -> Result<(), String> {
    let problems = problems(stage, prefix);
    if problems.is_empty() { Ok(()) } else { Err(format!("check_process: {}", problems.join("; "))) }
}

/// The problems that `check_process` finds in a sample.
pub fn problems(stage: &Stage<'_>, prefix: &str) -> Vec<String> {
    let options = &stage.lab.options;
    stage.superuser().all(&format!(
        "SELECT format('%s: %s', p.process_id, c.problem)
         FROM (SELECT process_id, execution_id FROM xdb.process_execution WHERE process_id LIKE {}
               ORDER BY hashtextextended(process_id, {}) LIMIT {}) p,
             LATERAL xdb.check_process(p.process_id, p.execution_id) c LIMIT 1000",
        literal(&format!("{prefix}%")),
        options.seed as i64,
        options.sample
    ))
}

/// Checks that no work is left, and that the workers have no complaints.
pub fn at_rest(stage: &Stage<'_>, workers: &[&Worker]) -> Result<(), String> {
    let tables = ["task", "timer", "inbox", "queue_message", "queue_waiter"];
    let count = |table: &&str| format!("SELECT '{table}', count(*) FROM xdb.{table}");
    let left = counts(&mut stage.superuser(), &tables.iter().map(count).collect::<Vec<_>>().join(" UNION ALL "));
    if let Some((table, count)) = left.iter().find(|(_, count)| **count != 0) {
        return Err(format!("{count} rows are left in xdb.{table}"));
    }
    no_complaints(workers)
}

/// Checks that the workers got only requests of the protocol.
pub fn no_complaints(workers: &[&Worker]) -> Result<(), String> {
    let complaints: Vec<String> = workers.iter().flat_map(|worker| worker.complaints()).collect();
    if complaints.is_empty() { Ok(()) } else { Err(format!("the worker: {}", complaints.join("; "))) }
}

/// Rows of a name and a number.
pub fn counts(db: &mut Db, sql: &str) -> BTreeMap<String, i64> {
    let rows = db.client().query(sql, &[]).unwrap_or_else(|error| panic!("{sql}\n{error}"));
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
