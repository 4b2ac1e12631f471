//! The process of the example `examples/signup`. A user signs up, is reminded until the address is verified, and is
//! welcomed.

use serde_json::json;

use crate::definition::Definition;
use crate::worker::{Answer, Api, Call, any_of, graceful_complete, local_queue, next, output, timer};

/// The time between two reminders.
pub const REMINDER_SECONDS: f64 = 0.3;

/// The process type `signup`, on the table `users` of [`crate::app::App`].
pub fn definition() -> Definition {
    Definition::starting_with("Submit")
        .step("Submit")
        .waiting_step("Verify")
        .maps("public.users", "user_id", &["form", "status", "source"])
        .with("localAttributes", json!(["reminders"]))
        .with("localQueues", json!(["verify"]))
        .rpc("verify", json!({"timeoutSeconds": 5}))
}

/// The handler of its worker.
pub fn handler(call: &Call) -> Answer {
    match (call.api, call.target()) {
        (Api::Execute, "Submit") => {
            next("Verify", json!(null)).globals(json!({"status": "waiting"})).locals(json!({"reminders": 0}))
        }
        (Api::WaitUntil, "Verify") => {
            any_of(&[timer("remind", REMINDER_SECONDS), local_queue("verified", "verify", 1)])
        }
        (Api::Execute, "Verify") if !call.messages("verified").is_empty() => {
            graceful_complete(json!({"reminders": call.local("reminders")}))
        }
        (Api::Execute, "Verify") => {
            let sent = call.local("reminders").as_u64().unwrap_or_default();
            next("Verify", json!(null)).locals(json!({"reminders": sent + 1}))
        }
        (Api::Rpc, "verify") if call.global("status") == "verified" => output(json!("already verified")),
        (Api::Rpc, "verify") => output(json!("done"))
            .globals(json!({"status": "verified", "source": call.input()}))
            .publish("verify", json!(null)),
        (api, target) => panic!("signup has no {api:?} of {target}"),
    }
}
