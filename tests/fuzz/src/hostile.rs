//! Workers that send invalid, broken and late replies at random: over HTTP, as a pull worker, and as functions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::random::Random;

use crate::values::{any_json, children, command_request, cron_timer, mutate, text};

/// The reply to a call: usually valid or almost valid.
pub fn reply(random: &mut Random, call: &Call) -> Reply {
    match random.below(40) {
        0 => Reply::CloseMidBody,
        1 => Reply::Huge(*random.pick(&[10_000, 3_000_000, 6_000_000])),
        2 => Reply::Drip(Duration::from_millis(1)),
        3 => Reply::Raw(200, (0..random.below(200)).map(|_| random.below(256) as u8).collect()),
        4 => Reply::Raw(200, vec![b'['; *random.pick(&[100, 5_000, 1_000_000])]),
        5 => Reply::Twice(Box::new(good(random, call)), Box::new(good(random, call))),
        6 => Reply::Late(Duration::from_millis(random.below(1500)), Box::new(good(random, call))),
        7 => Reply::Pieces(Duration::from_millis(random.below(300)), Box::new(good(random, call))),
        8 => Reply::Json(*random.pick(&[100, 204, 301, 404, 500, 503, 999]), any_json(random, 3)),
        9 => Reply::Json(200, any_json(random, 4)),
        10..=21 => match good(random, call) {
            Reply::Json(status, mut body) => {
                for _ in 0..random.between(1, 4) {
                    mutate(random, &mut body);
                }
                Reply::Json(status, body)
            }
            other => other,
        },
        _ => good(random, call),
    }
}

fn good(random: &mut Random, call: &Call) -> Reply {
    let answer = match call.api {
        Api::WaitUntil => {
            let commands: Vec<Value> = (0..random.between(1, 4))
                .map(|number| match random.below(4) {
                    3 => json!({"timerCommands": cron_timer(random)}),
                    0 => timer(&format!("t{number}"), random.below(300) as f64 / 1000.0),
                    1 => local_queue(&format!("l{number}"), "inbox", random.between(1, 3) as u32),
                    _ => {
                        let queue = *random.pick(&["orders", "changes"]);
                        global_queue(&format!("g{number}"), queue, random.between(1, 3) as u32)
                    }
                })
                .collect();
            if random.permille(200) { all_of(&commands) } else { any_of(&commands) }
        }
        Api::Execute => decided(random),
        Api::Rpc => {
            let answer = output(any_json(random, 2));
            if random.permille(500) { answer.and(decided(random)) } else { answer }
        }
    };
    let answer = if random.permille(300) { answer.globals(json!({"n": random.below(100)})) } else { answer };
    let answer = if random.permille(300) { answer.locals(json!({text(random): any_json(random, 2)})) } else { answer };
    let answer = if random.permille(200) { answer.publish("inbox", any_json(random, 2)) } else { answer };
    let answer = if random.permille(200) { answer.publish_global("orders", any_json(random, 2)) } else { answer };
    let answer = if random.permille(100) { answer.starting(children(random)) } else { answer };
    let named = ["*", "Wait", "Start", "Wait-1", "Wait-99", "Guard", "Nowhere"];
    let may_abort = call.api != Api::WaitUntil && random.permille(150);
    let answer = if may_abort { answer.aborting(&[*random.pick::<&str>(&named)]) } else { answer };
    answer.into()
}

/// A decision about where a thread goes.
fn decided(random: &mut Random) -> Answer {
    match random.below(10) {
        0 => force_complete(any_json(random, 2)),
        1 => graceful_complete(any_json(random, 2)),
        2 => force_fail(any_json(random, 2)),
        3 => dead_end(),
        4 => close_if_empty("inbox", "Wait"),
        6 => compensate(any_json(random, 2)),
        7 => {
            let config = json!({"commandRequest": command_request(random),
                *random.pick(&["skipWaitUntil", "interrupting", "guards", "waitUntilApiTimeoutSeconds"]): *random.pick(&[json!(1), json!(true), json!(["Guard"])])});
            let state = *random.pick(&["Start", "Wait", "Guard"]);
            Answer::deciding(json!({"nextStates": [{"stateId": state, "stateConfig": config}]}))
        }
        5 => next_all(&vec![("Wait", json!(null)); random.between(1, 30) as usize]),
        _ => next(random.pick::<&str>(&["Start", "Wait", "Guard"]), any_json(random, 2)),
    }
}

/// What a pull worker does with a call that it has claimed, as SQL.
pub fn pulled(random: &mut Random, token: &str, call: &Call) -> String {
    let reply = reply(random, call);
    as_sql(random, token, reply)
}

fn as_sql(random: &mut Random, token: &str, reply: Reply) -> String {
    let token_text = literal(token);
    match reply {
        Reply::Json(200, answer) => format!("SELECT xdb.complete_call({token_text}, {})", jsonb(&answer)),
        Reply::Json(_, failure) => format!("SELECT xdb.fail_call({token_text}, {})", jsonb(&failure)),
        Reply::Raw(_, bytes) => {
            // No deeper: Postgres reads `jsonb` by recursion, and crashes if the system can't give its stack more memory.
            let text: String = String::from_utf8_lossy(&bytes).chars().filter(|c| *c != '\0').take(200).collect();
            format!("SELECT xdb.complete_call({token_text}, {}::jsonb)", literal(&text))
        }
        Reply::Late(_, reply) | Reply::Pieces(_, reply) => as_sql(random, token, *reply),
        Reply::Twice(one, other) => {
            format!("{}; {}", as_sql(random, token, *one), as_sql(random, token, *other))
        }
        _ => (*random.pick(&[
            format!("SELECT xdb.fail_call({token_text})"),
            format!("SELECT xdb.extend_call({token_text}, '100 ms')"),
        ]))
        .clone(),
    }
}

/// The answers that functions give, as rows for `INSERT`: of `waitUntil`, of `execute`, and of an RPC.
pub fn answers(random: &mut Random, count: u32) -> Vec<String> {
    let body = |random: &mut Random, api: Api| {
        let reply = reply(random, &call(api, json!({})));
        match reply {
            Reply::Json(_, body) if body.to_string().len() < 100_000 => jsonb(&body),
            _ => "NULL".to_owned(),
        }
    };
    let row = |n| {
        let apis = [Api::WaitUntil, Api::Execute, Api::Rpc].map(|api| body(random, api));
        format!("({n}, {})", apis.join(", "))
    };
    (0..count).map(row).collect()
}

/// A call that did not come over HTTP.
pub fn call(api: Api, body: Value) -> Call {
    Call { api, path: String::new(), headers: HashMap::new(), raw: body.to_string(), body, at: Instant::now() }
}
