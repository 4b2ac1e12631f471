-- What pg_dump takes along of the extension's tables: everything but what every installation makes anew (engine,
-- registry) and what a copy finds out for itself (set_aside, attribute_lock).
DO $$
DECLARE
    kept pg_catalog.regclass;
BEGIN
    FOREACH kept IN ARRAY ARRAY[
        'xdb.instances', 'xdb.worker', 'xdb.mapped_table', 'xdb.process_type', 'xdb.process_execution',
        'xdb.latest_execution', 'xdb.state_execution', 'xdb.task', 'xdb.timer', 'xdb.inbox', 'xdb.message_key',
        'xdb.queue_message', 'xdb.queue_waiter', 'xdb.rpc_answer', 'xdb.local_attribute', 'xdb.history_event',
        'xdb.purged', 'xdb.global_message', 'xdb.global_message_key', 'xdb.global_waiter', 'xdb.global_passed_over',
        'xdb.worker_worker_id_seq', 'xdb.process_type_type_id_seq', 'xdb.mapping_id_seq', 'xdb.inbox_inbox_id_seq',
        'xdb.global_message_number_seq', 'xdb.global_waiter_wait_order_seq'
    ]::pg_catalog.regclass[]
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(kept, '');
    END LOOP;
END
$$;
