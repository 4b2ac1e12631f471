//! Commands and their arguments. Arguments have the names of those of the functions in the schema `xdb`; times are in RFC 3339,
//! and lengths of time are seconds. Null is as good as absent.

use serde::Deserialize;
use std::collections::BTreeMap;
use xdb_engine::Json;

/// What may be asked: an object with one key, the command, which has the arguments.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimulatorCommand {
    Register(RegisterArguments),
    Start(StartArguments),
    Calls(NoArguments),
    Answer(AnswerArguments),
    Advance(AdvanceArguments),
    Publish(PublishArguments),
    PublishGlobal(PublishGlobalArguments),
    Rpc(RpcArguments),
    Stop(StopArguments),
    SetLocalAttributes(SetLocalAttributesArguments),
    GetLocalAttributes(GetLocalAttributesArguments),
    SkipTimer(SkipTimerArguments),
    RetryNow(RetryNowArguments),
    PauseProcess(PauseProcessArguments),
    ResumeProcess(ProcessArguments),
    PauseProcessType(PauseProcessTypeArguments),
    ResumeProcessType(ProcessTypeArguments),
    Incidents(ProcessArguments),
    Rows(RowsArguments),
    Called(NoArguments),
    Describe(ProcessArguments),
    History(ProcessArguments),
    Check(ProcessArguments),
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $argument:ident: $type:ty),* $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $name { $($(#[$of])* pub $argument: Option<$type>),* }
        )+
    };
}

arguments! {
    NoArguments {}
    RegisterArguments { process_type: String, definition: Json }
    StartArguments {
        process_id: String,
        process_type: String,
        input: Json,
        global_attribute_pk: String,
        global_attributes: Json,
        local_attributes: Json,
        id_reuse_policy: String,
        timeout: f64,
        start_at: String,
        options: Json,
    }
    /// With neither: to the next moment at which something is due.
    AdvanceArguments { by: f64, until: String }
    PublishArguments {
        process_id: String,
        queue_name: String,
        message: Json,
        message_id: String,
        execution_id: String,
    }
    PublishGlobalArguments { queue_name: String, message: Json, key: String, message_id: String, ttl: f64 }
    RpcArguments {
        process_id: String,
        rpc_name: String,
        input: Json,
        timeout: f64,
        idempotency_key: String,
        execution_id: String,
    }
    StopArguments { process_id: String, stop_type: String, reason: String, execution_id: String }
    SetLocalAttributesArguments { process_id: String, attributes: Json, execution_id: String }
    GetLocalAttributesArguments { process_id: String, keys: Vec<String>, execution_id: String }
    SkipTimerArguments { process_id: String, state_execution_id: String, command_id: String, execution_id: String }
    RetryNowArguments { process_id: String, state_execution_id: String, execution_id: String }
    PauseProcessArguments { process_id: String, mode: String, until: String, reason: String, execution_id: String }
    PauseProcessTypeArguments { process_type: String, mode: String, until: String, reason: String }
    ProcessTypeArguments { process_type: String }
    RowsArguments {
        table: String,
        /// Column to value.
        key: Json,
        /// Written to the row with this key, which is made where it is not there.
        set: Json,
        delete: bool,
    }
    ProcessArguments { process_id: String, execution_id: String }
}

/// A worker's answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerArguments {
    pub call: u64,
    pub status: u16,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
}
