-- Comments on everything that psql can show, in the order of the files that create it.

COMMENT ON SCHEMA xdb IS 'XDB: durable processes. Call its functions, read its views; its tables are written by native code alone.';

COMMENT ON TABLE xdb.engine IS 'This database''s engine: one row per lane, written by the process that serves it.';
COMMENT ON COLUMN xdb.engine.lane IS '0 = the scheduler, 1 = the process for tables that are set aside.';
COMMENT ON COLUMN xdb.engine.epoch IS 'Grows at every start of the lane''s process and differs between lanes, so that no lease is ever issued twice.';
COMMENT ON COLUMN xdb.engine.paused IS 'Whether xdb.pause() was called and xdb.resume() was not since.';

COMMENT ON TABLE xdb.instances IS 'The databases whose processes these are: this one, unless it is a copy that was not adopted.';
COMMENT ON COLUMN xdb.instances.system_identifier IS 'Identifier of the server''s files, as pg_control_system() shows it.';
COMMENT ON COLUMN xdb.instances.database IS 'Oid of the database.';
COMMENT ON COLUMN xdb.instances.since IS 'When it was taken into use, or adopted.';
COMMENT ON COLUMN xdb.instances.superseded_at IS 'When another database adopted the processes.';

COMMENT ON TABLE xdb.registry IS 'The one row that tells the engine when to read the registrations again.';
COMMENT ON COLUMN xdb.registry.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN xdb.registry.generation IS 'Grows with every change of a worker or process type.';
COMMENT ON COLUMN xdb.registry.in_use IS 'Whether something was registered here, or what was restored was adopted.';

COMMENT ON TABLE xdb.worker IS 'Registered workers, by xdb.register_worker.';
COMMENT ON COLUMN xdb.worker.worker_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.worker.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.worker.url IS 'Where it listens; the paths of the worker protocol are appended.';
COMMENT ON COLUMN xdb.worker.secret IS 'Key that signs every call to it. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.headers IS 'HTTP headers sent with every call to it, {name: value}. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.worker.registered_at IS 'When it was registered first or last changed.';

COMMENT ON TABLE xdb.mapped_table IS 'Users'' tables whose columns are global attributes. Rows never change: a registration that maps otherwise makes a new mapping, and running executions keep theirs.';
COMMENT ON COLUMN xdb.mapped_table.mapping_id IS 'The mapping this table belongs to.';
COMMENT ON COLUMN xdb.mapped_table.position IS 'Place of the table in the definition.';
COMMENT ON COLUMN xdb.mapped_table.relation IS 'The table, followed through renames.';
COMMENT ON COLUMN xdb.mapped_table.table_name IS 'The table''s name as the definition spelled it.';
COMMENT ON COLUMN xdb.mapped_table.key_columns IS 'Columns that find the row.';
COMMENT ON COLUMN xdb.mapped_table.attributes IS 'Columns by attribute, {attribute: column}.';
COMMENT ON SEQUENCE xdb.mapping_id_seq IS 'Gives mapping_id.';

COMMENT ON TABLE xdb.process_type IS 'Registered process types, by xdb.register_process_type.';
COMMENT ON COLUMN xdb.process_type.type_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.process_type.process_type IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.process_type.worker_id IS 'Worker that implements its states and RPCs.';
COMMENT ON COLUMN xdb.process_type.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_type.mapping_id IS 'Global attributes of executions that start from now on; null = none.';
COMMENT ON COLUMN xdb.process_type.version IS 'Grows with every registration.';
COMMENT ON COLUMN xdb.process_type.registered_at IS 'When it was registered last.';

COMMENT ON TABLE xdb.process_execution IS 'Process executions: one row per run of a process id. Its row lock guards everything that belongs to the execution.';
COMMENT ON COLUMN xdb.process_execution.execution_id IS 'UUID, version 7.';
COMMENT ON COLUMN xdb.process_execution.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.process_execution.process_id IS 'Business identifier, chosen by whoever started it.';
COMMENT ON COLUMN xdb.process_execution.type_id IS 'Its process type. Not a foreign key: closed executions may outlive their type.';
COMMENT ON COLUMN xdb.process_execution.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.process_execution.owner IS 'Role that started it: its steps touch users'' tables as this role. May be gone by now.';
COMMENT ON COLUMN xdb.process_execution.owner_name IS 'Name of the owner at the start; a role that took over the oid is not the owner.';
COMMENT ON COLUMN xdb.process_execution.status IS 'RUNNING, then for ever one of COMPLETED, FAILED, TIMEOUT, TERMINATED.';
COMMENT ON COLUMN xdb.process_execution.closing IS 'Set while a close waits for open publishers: to an UNCONDITIONAL close further publishes are refused, to a CONDITIONAL one they wait for its outcome.';
COMMENT ON COLUMN xdb.process_execution.started_at IS 'When it was started.';
COMMENT ON COLUMN xdb.process_execution.closed_at IS 'When it closed; null while it runs.';
COMMENT ON COLUMN xdb.process_execution.timeout_at IS 'When it times out; null = never.';
COMMENT ON COLUMN xdb.process_execution.reason IS 'Why it failed or was stopped.';
COMMENT ON COLUMN xdb.process_execution.next_event IS 'Number of the event that comes next, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_state IS 'Ordinal of the state execution that comes next, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_message IS 'Number of the message that is received next, from 1.';
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.process_execution.completing IS 'Whether a graceful completion was requested: the process completes when its last thread ends.';
COMMENT ON COLUMN xdb.process_execution.state_numbers IS 'Number given out last per state id, {stateId: number}.';
COMMENT ON COLUMN xdb.process_execution.mapping_id IS 'Its mapping of global attributes, as at its start; null = it has none.';
COMMENT ON COLUMN xdb.process_execution.attribute_keys IS 'Keys of its rows: for each mapped table, in their order, the texts of its key columns as given at its start; null where no table is mapped.';
COMMENT ON COLUMN xdb.process_execution.results IS 'Outputs of the threads that closed it, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.process_execution.history_limit IS 'How many of the last events are kept at least: null for all, 0 for none.';
COMMENT ON COLUMN xdb.process_execution.request_id IS 'The starter''s requestId: starting again with it gives this execution.';
COMMENT ON COLUMN xdb.process_execution.traceparent IS 'Trace context of the starter, sent with every call.';

COMMENT ON TABLE xdb.latest_execution IS 'The latest execution of every process id. Its row lock decides between starts of the same id.';
COMMENT ON COLUMN xdb.latest_execution.process_id IS 'Process id.';
COMMENT ON COLUMN xdb.latest_execution.execution_id IS 'Its latest execution, running or closed.';

COMMENT ON TABLE xdb.state_execution IS 'State executions, with their payloads.';
COMMENT ON COLUMN xdb.state_execution.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.state_execution.seq IS 'Ordinal within the process execution, from 1 over all states.';
COMMENT ON COLUMN xdb.state_execution.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.state_execution.state_id IS 'Async state that runs.';
COMMENT ON COLUMN xdb.state_execution.number IS 'Counted from 1 per state id; the state execution id is <state_id>-<number>.';
COMMENT ON COLUMN xdb.state_execution.status IS 'WAIT_UNTIL and EXECUTE: at that call. WAITING: for its commands. COMPLETED, FAILED (retries spent), ABORTED (the process closed first): ended.';
COMMENT ON COLUMN xdb.state_execution.started_at IS 'When its thread came to it.';
COMMENT ON COLUMN xdb.state_execution.ended_at IS 'When it ended; null while it is live.';
COMMENT ON COLUMN xdb.state_execution.input IS 'Input of the state.';
COMMENT ON COLUMN xdb.state_execution.config IS 'State options that came with the movement and override the registered ones.';
COMMENT ON COLUMN xdb.state_execution.recovery IS 'What it recovers from: the failed state execution, its API and its last failure.';
COMMENT ON COLUMN xdb.state_execution.call IS 'The call it is at: not before when (microseconds since the Unix epoch), failed attempts, request generation, last failure.';
COMMENT ON COLUMN xdb.state_execution.wait IS 'What it waits for, or waited for: then it is the command results. Times are microseconds since the Unix epoch.';
COMMENT ON COLUMN xdb.state_execution.last_failure IS 'Last failed attempt of the call it is at, or was at when it failed or was aborted; null if that call never failed.';

COMMENT ON TABLE xdb.task IS 'Calls that are to be made. Hot: a row lives from the decision to call until the answer is applied.';
COMMENT ON COLUMN xdb.task.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.task.seq IS 'State execution that makes the call.';
COMMENT ON COLUMN xdb.task.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.task.lane IS 'Who carries it out: 0 = the scheduler, 1 = the process for tables that are set aside, 2 = nobody while it waits for locks.';
COMMENT ON COLUMN xdb.task.worker_id IS 'Worker that is called.';
COMMENT ON COLUMN xdb.task.api IS 'WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.task.due_at IS 'When it may be claimed.';
COMMENT ON COLUMN xdb.task.attempt IS 'Attempts whose start is durable.';
COMMENT ON COLUMN xdb.task.first_attempt_at IS 'When the first attempt began; null = none has.';
COMMENT ON COLUMN xdb.task.lease_epoch IS 'Engine epoch of the lease. Only the answer of the lease that stands here is applied.';
COMMENT ON COLUMN xdb.task.lease_number IS 'Number of the lease within its epoch.';
COMMENT ON COLUMN xdb.task.lease_until IS 'When the lease ends and the call may be made again; null = not leased.';

COMMENT ON SEQUENCE xdb.attribute_lock_ticket IS 'Gives ticket: the place in the queue of a lock.';

COMMENT ON TABLE xdb.attribute_lock IS 'Locks on attributes that calls of states have or wait for, so that they do not conflict. What is right is decided by versions, not by them.';
COMMENT ON COLUMN xdb.attribute_lock.object IS 'Hash of what is locked. Two things of one hash wait for each other, and that is all.';
COMMENT ON COLUMN xdb.attribute_lock.ticket IS 'Place in the queue, one for all objects of the call; RPCs take from the same sequence.';
COMMENT ON COLUMN xdb.attribute_lock.mode IS 'S = shared, X = exclusive; IS and IX announce that on a part.';
COMMENT ON COLUMN xdb.attribute_lock.execution_id IS 'Process execution of the call.';
COMMENT ON COLUMN xdb.attribute_lock.seq IS 'State execution of the call.';
COMMENT ON COLUMN xdb.attribute_lock.granted IS 'The call has it, for as long as its lease is good.';
COMMENT ON COLUMN xdb.attribute_lock.parked IS 'The call waits for it and is in the way of later ones. Neither granted nor parked: it is about to ask again.';
COMMENT ON COLUMN xdb.attribute_lock.name IS 'What is locked, for people.';

COMMENT ON TABLE xdb.attribute_lock_release IS 'Objects of xdb.attribute_lock that were released by others than the scheduler, which takes them out and hands them on.';
COMMENT ON COLUMN xdb.attribute_lock_release.release_id IS 'Key.';
COMMENT ON COLUMN xdb.attribute_lock_release.object IS 'What was released.';

COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts and timer commands. A row is gone when it fired or its scope ended.';
COMMENT ON COLUMN xdb.timer.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.timer.seq IS 'State execution that waits for it; 0 = the process timeout.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the state''s request, from 0; 0 for a process timeout.';
COMMENT ON COLUMN xdb.timer.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timer.fire_at IS 'When it fires; never earlier.';

COMMENT ON TABLE xdb.inbox IS 'Messages that were published and not yet received by their process. Rows are inserted and deleted, never changed.';
COMMENT ON COLUMN xdb.inbox.inbox_id IS 'Order of publishing.';
COMMENT ON COLUMN xdb.inbox.execution_id IS 'Process execution they are for.';
COMMENT ON COLUMN xdb.inbox.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.inbox.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.inbox.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.inbox.payload IS 'The message.';
COMMENT ON COLUMN xdb.inbox.bytes IS 'Length of the payload as text, so that a turn knows how much it can take in.';
COMMENT ON COLUMN xdb.inbox.published_at IS 'When it was published.';

COMMENT ON TABLE xdb.message_key IS 'Message ids that were used, so that a second message with the same id is ignored.';
COMMENT ON COLUMN xdb.message_key.execution_id IS 'Process execution the message was for.';
COMMENT ON COLUMN xdb.message_key.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.message_key.message_id IS 'The publisher''s id of the message.';

COMMENT ON TABLE xdb.queue_message IS 'Messages that were received and not yet taken by a state.';
COMMENT ON COLUMN xdb.queue_message.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.queue_message.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_message.number IS 'Order of receiving within the execution, over all queues.';
COMMENT ON COLUMN xdb.queue_message.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.queue_message.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.queue_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_message.received_at IS 'When the process took it in.';

COMMENT ON TABLE xdb.queue_waiter IS 'Which waiting states want messages of which queue, so that an arrival finds them without reading all states.';
COMMENT ON COLUMN xdb.queue_waiter.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.queue_waiter.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_waiter.wait_order IS 'Number of the event that began the wait: waiters are served in this order.';
COMMENT ON COLUMN xdb.queue_waiter.seq IS 'State execution that waits.';

COMMENT ON TABLE xdb.global_message IS 'Messages of global queues: free, or taken by a state that has not used them up.';
COMMENT ON COLUMN xdb.global_message.number IS 'Order of publishing, over all queues.';
COMMENT ON COLUMN xdb.global_message.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message.key IS 'Key of the message, if it has one.';
COMMENT ON COLUMN xdb.global_message.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.global_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.global_message.bytes IS 'Size of the payload as it came.';
COMMENT ON COLUMN xdb.global_message.owner IS 'Role that published it.';
COMMENT ON COLUMN xdb.global_message.owner_name IS 'Its name, which tells it in another server.';
COMMENT ON COLUMN xdb.global_message.published_at IS 'When it was published.';
COMMENT ON COLUMN xdb.global_message.expires_at IS 'From when on nobody can take it; null = never. Time that it was taken is added when it is given back.';
COMMENT ON COLUMN xdb.global_message.fresh IS 'It was not offered yet to those who wait.';
COMMENT ON COLUMN xdb.global_message.taken_by IS 'Process execution that has taken it; null = free.';
COMMENT ON COLUMN xdb.global_message.taken_seq IS 'State execution that has taken it.';
COMMENT ON COLUMN xdb.global_message.taken_command IS 'Position of the command that has taken it.';
COMMENT ON COLUMN xdb.global_message.taken_at IS 'When it was taken.';

COMMENT ON TABLE xdb.global_message_key IS 'Message ids that were used in global queues, kept while the message is there and for xdb.retention.';
COMMENT ON COLUMN xdb.global_message_key.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message_key.message_id IS 'The publisher''s id of the message.';
COMMENT ON COLUMN xdb.global_message_key.published_at IS 'When it was used first.';

COMMENT ON TABLE xdb.global_waiter IS 'Commands of waiting states that want messages of a global queue.';
COMMENT ON COLUMN xdb.global_waiter.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.global_waiter.seq IS 'State execution that waits.';
COMMENT ON COLUMN xdb.global_waiter.command IS 'Position of the command.';
COMMENT ON COLUMN xdb.global_waiter.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_waiter.key IS 'Key of the messages that it wants; null = of all.';
COMMENT ON COLUMN xdb.global_waiter.at_least IS 'Messages that complete the command.';
COMMENT ON COLUMN xdb.global_waiter.wait_order IS 'Waiters are served in this order.';

COMMENT ON TABLE xdb.global_passed_over IS 'Waiting states that could not be asked when messages of global queues came, and will be.';
COMMENT ON COLUMN xdb.global_passed_over.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.global_passed_over.seq IS 'State execution that waits.';

COMMENT ON TABLE xdb.rpc_answer IS 'Answers of RPCs that had an idempotency key: the same key again gives the same answer, and the worker is not called.';
COMMENT ON COLUMN xdb.rpc_answer.execution_id IS 'Process execution that was called.';
COMMENT ON COLUMN xdb.rpc_answer.idempotency_key IS 'Key that the caller gave.';
COMMENT ON COLUMN xdb.rpc_answer.answered_at IS 'When the key was used first.';
COMMENT ON COLUMN xdb.rpc_answer.output IS 'Output of the RPC; null if it had none.';

COMMENT ON TABLE xdb.local_attribute IS 'Local attributes of process executions.';
COMMENT ON COLUMN xdb.local_attribute.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.local_attribute.key IS 'Name of the attribute.';
COMMENT ON COLUMN xdb.local_attribute.value IS 'Its value as written last.';

COMMENT ON TABLE xdb.history_event IS 'What happened to process executions that keep a history. Replaying the rows from nothing gives the state that the tables hold; where not the whole history is kept, the first one is a Snapshot that stands for those before it.';
COMMENT ON COLUMN xdb.history_event.execution_id IS 'Process execution it happened to.';
COMMENT ON COLUMN xdb.history_event.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history_event.event_time IS 'When it happened.';
COMMENT ON COLUMN xdb.history_event.event_type IS 'What happened, e.g. StateStarted.';
COMMENT ON COLUMN xdb.history_event.details IS 'All that belongs to the event. Times are microseconds since the Unix epoch.';

COMMENT ON TABLE xdb.purged IS 'Executions that were purged and have left rows, which the engine deletes bit by bit.';
COMMENT ON COLUMN xdb.purged.execution_id IS 'The execution; its own row is gone.';

COMMENT ON TABLE xdb.set_aside IS 'Users'' tables on which steps ran into the apply timeout again and again: their steps are carried out apart, one by one.';
COMMENT ON COLUMN xdb.set_aside.relation IS 'The table.';
COMMENT ON COLUMN xdb.set_aside.since IS 'When it was set aside.';
COMMENT ON COLUMN xdb.set_aside.reason IS 'What its steps ran into.';

COMMENT ON VIEW xdb.processes IS 'Process executions that the reader may see.';
COMMENT ON COLUMN xdb.processes.process_id IS 'Business identifier, chosen by whoever started it.';
COMMENT ON COLUMN xdb.processes.execution_id IS 'This run of the process id.';
COMMENT ON COLUMN xdb.processes.is_latest IS 'Whether it is the latest execution of its process id.';
COMMENT ON COLUMN xdb.processes.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.processes.owner IS 'Role that started it, by the name it had then.';
COMMENT ON COLUMN xdb.processes.status IS 'RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED.';
COMMENT ON COLUMN xdb.processes.started_at IS 'When it was started.';
COMMENT ON COLUMN xdb.processes.timeout_at IS 'When it times out; null = never.';
COMMENT ON COLUMN xdb.processes.closed_at IS 'When it closed; null while it runs.';
COMMENT ON COLUMN xdb.processes.reason IS 'Why it failed or was stopped.';
COMMENT ON COLUMN xdb.processes.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.processes.result IS 'The output, if exactly one thread gave one.';
COMMENT ON COLUMN xdb.processes.results IS 'All outputs, [{"stateExecutionId", "output"}].';

COMMENT ON VIEW xdb.state_executions IS 'State executions of the processes that the reader may see.';
COMMENT ON COLUMN xdb.state_executions.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.state_executions.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.state_executions.state_execution_id IS '<state_id>-<number>.';
COMMENT ON COLUMN xdb.state_executions.state_id IS 'Async state that runs.';
COMMENT ON COLUMN xdb.state_executions.number IS 'Counted from 1 per state id.';
COMMENT ON COLUMN xdb.state_executions.status IS 'WAIT_UNTIL, WAITING, EXECUTE; COMPLETED, FAILED (retries spent), ABORTED (the process closed first).';
COMMENT ON COLUMN xdb.state_executions.started_at IS 'When its thread came to it.';
COMMENT ON COLUMN xdb.state_executions.ended_at IS 'When it ended; null while it is live.';
COMMENT ON COLUMN xdb.state_executions.api IS 'The call it is at, WAIT_UNTIL_API or EXECUTE_API; null while it waits and when it has ended.';
COMMENT ON COLUMN xdb.state_executions.attempt IS 'Attempt of that call which is in progress or comes next, from 1.';
COMMENT ON COLUMN xdb.state_executions.next_attempt_at IS 'The call is not made before this moment; in the past when it is due or in progress.';
COMMENT ON COLUMN xdb.state_executions.input IS 'Input of the state.';
COMMENT ON COLUMN xdb.state_executions.config IS 'State options that came with the movement.';
COMMENT ON COLUMN xdb.state_executions.recovers_from IS 'Failed state execution that it recovers from.';
COMMENT ON COLUMN xdb.state_executions.repeats IS 'How often that call was made again because what it had loaded under a lock had changed; not attempts.';

COMMENT ON VIEW xdb.waits IS 'What is waited for: one row per command of every waiting state, and one per process whose close waits for open publishers.';
COMMENT ON COLUMN xdb.waits.process_id IS 'Process that waits.';
COMMENT ON COLUMN xdb.waits.execution_id IS 'Process execution that waits.';
COMMENT ON COLUMN xdb.waits.state_execution_id IS 'State execution that waits; null for a close.';
COMMENT ON COLUMN xdb.waits.waiting_type IS 'When the commands are enough: AllOfCompletion, AnyOfCompletion or AnyOfCombination.';
COMMENT ON COLUMN xdb.waits.kind IS 'TIMER, LOCAL_QUEUE, GLOBAL_QUEUE, or PUBLISHERS for a close.';
COMMENT ON COLUMN xdb.waits.command_id IS 'Id that the worker gave the command, if any.';
COMMENT ON COLUMN xdb.waits.command_status IS 'WAITING_COMMAND, or COMPLETED_COMMAND while others still wait.';
COMMENT ON COLUMN xdb.waits.queue_name IS 'Queue whose messages are waited for.';
COMMENT ON COLUMN xdb.waits.at_least IS 'Messages that complete the command.';
COMMENT ON COLUMN xdb.waits.at_most IS 'Messages that the command takes at most.';
COMMENT ON COLUMN xdb.waits.messages_in_queue IS 'Messages of that queue now, received or not; null for a global queue.';
COMMENT ON COLUMN xdb.waits.since IS 'When the wait began; not kept for a close.';
COMMENT ON COLUMN xdb.waits.fire_at IS 'When the timer fires.';
COMMENT ON COLUMN xdb.waits.closing IS 'UNCONDITIONAL or CONDITIONAL: the close that waits.';
COMMENT ON COLUMN xdb.waits.held_up_by IS 'Process ids of the sessions that hold the close up: exactly the one, if it is one; if there are several, all sessions that hold row locks on xdb.process_execution, of which some may be strangers.';
COMMENT ON COLUMN xdb.waits.key IS 'Key of the messages that are wanted of a global queue; null = of all.';

COMMENT ON VIEW xdb.timers IS 'Timers of the processes that the reader may see.';
COMMENT ON COLUMN xdb.timers.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.timers.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.timers.state_execution_id IS 'State execution that waits for it; null for a process timeout.';
COMMENT ON COLUMN xdb.timers.command_id IS 'Id that the worker gave the command, if any.';
COMMENT ON COLUMN xdb.timers.kind IS 'PROCESS_TIMEOUT or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timers.fire_at IS 'When it fires.';

COMMENT ON VIEW xdb.queue_messages IS 'Messages in the local queues of the processes that the reader may see, and messages of global queues that roles of the reader published and nobody has taken.';
COMMENT ON COLUMN xdb.queue_messages.process_id IS 'Process whose queue it is; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.execution_id IS 'Process execution whose queue it is; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.queue_name IS 'The queue.';
COMMENT ON COLUMN xdb.queue_messages.position IS 'Place in the queue: 1 is taken next. In a global queue, the place among the messages that the reader sees.';
COMMENT ON COLUMN xdb.queue_messages.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.queue_messages.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_messages.received IS 'Whether the process has taken it in; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.published_at IS 'When it was published; not kept once it is received.';
COMMENT ON COLUMN xdb.queue_messages.received_at IS 'When the process took it in.';
COMMENT ON COLUMN xdb.queue_messages.key IS 'Key of a message of a global queue, if it has one.';
COMMENT ON COLUMN xdb.queue_messages.expires_at IS 'From when on nobody can take a message of a global queue; null = never.';

COMMENT ON VIEW xdb.failures IS 'Last failed attempts of calls that are in backoff, are repeated, or were given up.';
COMMENT ON COLUMN xdb.failures.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.failures.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.failures.state_execution_id IS 'State execution whose call failed.';
COMMENT ON COLUMN xdb.failures.state_status IS 'WAIT_UNTIL or EXECUTE: the call is repeated. FAILED: the retries are spent. ABORTED: the process closed before the next attempt.';
COMMENT ON COLUMN xdb.failures.api IS 'The call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.failures.attempt IS 'Which attempt failed, from 1.';
COMMENT ON COLUMN xdb.failures.failed_at IS 'When it failed.';
COMMENT ON COLUMN xdb.failures.http_status IS 'HTTP status of the answer; null if there was none.';
COMMENT ON COLUMN xdb.failures.error_type IS 'The worker''s word for the kind of its error.';
COMMENT ON COLUMN xdb.failures.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.failures.sql_state IS 'SQLSTATE, if a user''s table refused what the answer wrote.';
COMMENT ON COLUMN xdb.failures.table_name IS 'The table that refused.';
COMMENT ON COLUMN xdb.failures.constraint_name IS 'The constraint that was violated.';
COMMENT ON COLUMN xdb.failures.next_attempt_at IS 'When the next attempt may be made, in the past when it is due or in progress; null when there is none.';

COMMENT ON VIEW xdb.attribute_locks IS 'Locks on attributes that state executions have or wait for, at most 256, those who wait first; xdb.status() says how many more wait. RPCs are not among them: they hold locks of Postgres.';
COMMENT ON COLUMN xdb.attribute_locks.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.state_execution_id IS 'State execution whose call has it or waits for it.';
COMMENT ON COLUMN xdb.attribute_locks.locked IS 'What is locked: a row of a table by its key, a local attribute, or all of them.';
COMMENT ON COLUMN xdb.attribute_locks.lock_type IS 'SHARE_LOCK or EXCLUSIVE_LOCK. Of all local attributes it may be that of a part, which excludes only who wants the whole.';
COMMENT ON COLUMN xdb.attribute_locks.granted IS 'Whether it has it. Who waits for one of its locks has none.';
COMMENT ON COLUMN xdb.attribute_locks.ticket IS 'Place of the call among those that wait and are shown, in the order in which they are served; 0 for a call that has it.';
COMMENT ON COLUMN xdb.attribute_locks.object IS 'The same for everybody who waits for the same.';
COMMENT ON COLUMN xdb.attribute_locks.due_at IS 'Since when the call is due.';

COMMENT ON VIEW xdb.history IS 'What happened to the processes that the reader may see. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.history.process_id IS 'Process it happened to.';
COMMENT ON COLUMN xdb.history.execution_id IS 'Process execution it happened to.';
COMMENT ON COLUMN xdb.history.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history.event_time IS 'When it happened.';
COMMENT ON COLUMN xdb.history.event_type IS 'What happened, e.g. StateStarted.';
COMMENT ON COLUMN xdb.history.details IS 'All that belongs to the event. Times are microseconds since the Unix epoch.';

COMMENT ON VIEW xdb.workers IS 'Registered workers, without their secrets, and how the calls to them went since the server started.';
COMMENT ON COLUMN xdb.workers.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.workers.url IS 'Where it listens.';
COMMENT ON COLUMN xdb.workers.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.workers.registered_at IS 'When it was registered first or last changed.';
COMMENT ON COLUMN xdb.workers.in_flight IS 'Calls that run now.';
COMMENT ON COLUMN xdb.workers.calls IS 'Calls that were made.';
COMMENT ON COLUMN xdb.workers.failures IS 'Calls that failed.';
COMMENT ON COLUMN xdb.workers.consecutive_failures IS 'Calls that failed since the last one that did not.';
COMMENT ON COLUMN xdb.workers.average_latency IS 'How long its calls take, on average; null before the first.';
COMMENT ON COLUMN xdb.workers.last_error_at IS 'When a call failed last; null = none has.';
COMMENT ON COLUMN xdb.workers.breaker IS 'closed; open: many calls in a row could not reach it, and none are made; half-open: one call is made, or will be as soon as one is due, and tells whether it is back.';
COMMENT ON COLUMN xdb.workers.breaker_open_since IS 'Since when it could not be reached; null when the breaker is closed.';
COMMENT ON COLUMN xdb.workers.next_probe_at IS 'From when on one call may be made to find out; null when the breaker is closed or that call is under way.';

COMMENT ON FUNCTION xdb.register_worker(text, text, text, jsonb, integer) IS 'Registers a worker, or changes the one of this name. Decides which URL the server calls.';
COMMENT ON FUNCTION xdb.unregister_worker(text) IS 'Removes a worker. Refused while a process type uses it.';
COMMENT ON FUNCTION xdb.register_process_type(text, text, jsonb) IS 'Registers a process type with its worker and definition, or replaces it. Running executions use the new states, options and RPCs from their next call; attribute mapping and timeout stay as at their start.';
COMMENT ON FUNCTION xdb.unregister_process_type(text) IS 'Removes a process type. Refused while executions of it run.';
COMMENT ON FUNCTION xdb.start_process(text, text, jsonb, text, jsonb, jsonb, text, interval, timestamptz, jsonb) IS 'Starts a process in the caller''s transaction and returns the id of its execution. Its owner is the current user.';
COMMENT ON FUNCTION xdb.start_processes(jsonb) IS 'Starts many processes in the caller''s transaction: an array of objects whose keys are the parameters of xdb.start_process. Returns the ids of the executions, in the order of the array.';
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction and returns its output.';
COMMENT ON FUNCTION xdb.publish(text, text, jsonb, text, uuid) IS 'Publishes a message to a local queue of a running process in the caller''s transaction. A message_id that was used before in the queue is ignored.';
COMMENT ON FUNCTION xdb.publish_global(text, jsonb, text, text, interval) IS 'Publishes a message to a global queue in the caller''s transaction, for whichever process takes it. A message_id that the queue has seen within xdb.retention is ignored; after the ttl nobody can take the message any more.';
COMMENT ON FUNCTION xdb.stop_process(text, text, text, uuid) IS 'Stops a running process, with a reason that is kept: TERMINATE makes it TERMINATED, FAIL makes it FAILED.';
COMMENT ON FUNCTION xdb.describe_process(text, uuid) IS 'Status, type, times, threads and what each waits for, last failure and results of a process.';
COMMENT ON FUNCTION xdb.wait_for_process(text, interval, uuid) IS 'Waits until a process has closed, at most for the timeout, and returns {"status", "result", "results", "timedOut"}.';
COMMENT ON FUNCTION xdb.wait_for_state(text, text, interval, uuid) IS 'Waits until a state execution has ended, at most for the timeout, and returns {"status", "processStatus", "timedOut"}. When the process closes first, status is null if there never was such a state execution.';
COMMENT ON FUNCTION xdb.set_local_attributes(text, jsonb, uuid) IS 'Writes local attributes of a running process, {key: value}, in the caller''s transaction.';
COMMENT ON FUNCTION xdb.skip_timer(text, text, text, uuid) IS 'Lets a timer that a state execution waits for count as completed, with the status SKIPPED_COMMAND: the one with the command id, or the one that would fire first.';
COMMENT ON FUNCTION xdb.retry_now(text, text, uuid) IS 'Makes the calls of a process that are in backoff due at once, or only that of one state execution. Returns how many.';
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process and compares every table with it: one row per problem, none if it is sound.';
COMMENT ON FUNCTION xdb.process_problems(text, uuid) IS 'Stands behind xdb.check_process; may change.';
COMMENT ON FUNCTION xdb.get_local_attributes(text, text[], uuid) IS 'Local attributes of a process, {key: value}: those with the given keys, or all.';
COMMENT ON FUNCTION xdb.pause() IS 'Stops this database''s engine from claiming new work; answers of calls in flight are still applied. Whoever may execute this function is an XDB administrator and sees all processes.';
COMMENT ON FUNCTION xdb.resume() IS 'Lets a paused engine claim work again.';
COMMENT ON FUNCTION xdb.adopt() IS 'Makes the processes of a copied or restored database its own, so that they run here. Does nothing in a database that is no copy.';
COMMENT ON FUNCTION xdb.knows_roles() IS 'Whether the owners of processes are roles of this server; not in a copy from another one before xdb.adopt().';
COMMENT ON FUNCTION xdb.purge(interval) IS 'Deletes executions that closed so long ago, with everything that belongs to them, and returns how many. Those that somebody has locked are left out.';
COMMENT ON FUNCTION xdb.engine_figures() IS 'The figures behind xdb.status(), one JSON object.';
COMMENT ON FUNCTION xdb.library_version() IS 'The version of xdb that the server runs. That of the schema is extversion in pg_extension.';
COMMENT ON FUNCTION xdb.worker_figures() IS 'The figures behind xdb.worker_counters(), a JSON array with an object per worker.';
COMMENT ON FUNCTION xdb.attribute_lock_figures() IS 'What the view xdb.attribute_locks shows, a JSON array of what its reader may see.';
COMMENT ON FUNCTION xdb.shown_attribute_locks() IS 'The same as rows.';
COMMENT ON FUNCTION xdb.status() IS 'One row: how this database''s engine is doing.';
COMMENT ON FUNCTION xdb.worker_counters() IS 'How the calls to each worker went since the server started; the view xdb.workers shows it.';
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean) IS 'Lets a role use XDB: start and drive processes and see its own; as admin also register workers and process types, pause and resume the engine, purge, and see all processes. Adds to what was granted before.';
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to a role. What it has through other roles stays.';
