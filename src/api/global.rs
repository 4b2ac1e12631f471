//! `xdb.publish_global`: publishes to global queues.

use super::arguments::{json, name, name_if_given, payload};
use super::caller::{Caller, owner_name, wrote};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::param::Jsonb;
use crate::pg::process;
use crate::pg::shmem::over::{self, Quota};
use crate::store::global_queue::{self as global, NewGlobalMessage};
use crate::{clock, error, guc};
use xdb_engine::Duration;
use xdb_protocol::arguments;

/// The longest time to live. Longer ones would exceed the range of Postgres' timestamps.
const LONGEST_TTL: Duration = Duration(i64::MAX / 4);

/// `xdb.publish_global()`: publishes a message as the caller. An error if the caller's quota is used up.
pub fn publish_global(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.publish_global()")?;
    let queue = name("queue_name", args.text(0))?;
    let message = payload("message", json(args, 1, "message")?)?;
    let key = name_if_given("key", args.text(2))?;
    let message_id = name_if_given("message_id", args.text(3))?;
    let ttl = arguments::valid("ttl", args.interval(4), "not be negative")?;
    if let Some(longer) = ttl.filter(|ttl| *ttl > LONGEST_TTL) {
        let (has, most) = (longer.as_std().as_secs(), LONGEST_TTL.as_std().as_secs());
        let what = format_args!("it is {has} seconds long; at most {most} are allowed");
        return Err(error::invalid_argument("ttl", what));
    }
    let is_over = over::limit(process::database(), caller.role, Quota::Messages).is_some();
    caller.on_system_tables(|spi, _| {
        if is_over {
            // A caller that repeats a message may not know that its first transaction has committed.
            let is_known = |id: &str| global::is_known(spi, &queue, caller.role, id);
            return match message_id.as_deref().map_or(Ok(false), is_known)? {
                true => Ok(()),
                false => Err(error::global_queues_full(&owner_name(caller)?, &guc::quotas())),
            };
        }
        let now = clock::now();
        let message = NewGlobalMessage {
            queue_name: &queue,
            key: key.as_deref(),
            message_id: message_id.as_deref(),
            payload: message.as_ref().map(Jsonb::from),
            bytes: message.as_ref().map_or(0, |message| message.as_str().len() as i32),
            owner: caller.role,
            published_at: now,
            expires_at: ttl.map(|ttl| now + ttl),
        };
        global::publish(spi, &[message])
    })?;
    crash::point("publish-global");
    wrote();
    Ok(Value::Void)
}
