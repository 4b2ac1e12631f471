-- Messages that start processes: each message of the global queue `orders` starts a process of the type Order, once.
-- Orders with one key run one at a time, in the order of their messages.
-- Run this as a deployer, in a schema `public` in which it may create.
--
-- Limitations: with several processes of the type Orders, two of them may take messages of one key at the same time.
-- Then the order of their starts counts.

-- An order is a row. A second order with the same number is refused by the process id.
CREATE TABLE public.orders (number text PRIMARY KEY, customer text NOT NULL, taken_at timestamptz NOT NULL DEFAULT clock_timestamp());

-- Starts a process for each message, in their order. A refused start goes to the queue `orders.refused`; a conflict
-- fails the attempt, so all of its messages are taken again.
CREATE FUNCTION public.take_orders(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    message jsonb;
BEGIN
    FOR message IN SELECT m FROM jsonb_array_elements(request #> '{commandResults,globalQueueResults,0,messages}') AS m LOOP
        BEGIN
            PERFORM xdb.start_process('order-' || (message->'payload'->>'number'), 'Order', message->'payload',
                id_reuse_policy => 'DISALLOW_REUSE',
                options => CASE WHEN message->>'key' IS NULL THEN '{}'
                    ELSE jsonb_build_object('locks', jsonb_build_array('orders/' || (message->>'key'))) END);
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(40|5)' THEN
                RAISE;
            END IF;
            PERFORM xdb.publish_global('orders.refused', message->'payload' || jsonb_build_object('why', SQLERRM), key => message->>'key');
        END;
    END LOOP;
    RETURN '{"stateDecision": {"nextStates": [{"stateId": "Take"}]}}';
END $$;

CREATE FUNCTION public.write_order(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO public.orders (number, customer) VALUES (request->'stateInput'->>'number', request->'stateInput'->>'customer')
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}'::jsonb $$;

SELECT xdb.register_process_type('Order', NULL, '{"startingState": "Write",
    "states": {"Write": {"skipWaitUntil": true, "executeFunction": "public.write_order"}}}');
SELECT xdb.register_process_type('Orders', NULL, '{"startingState": "Take", "globalQueues": ["orders"], "history": {"keepLast": 100},
    "states": {"Take": {"executeFunction": "public.take_orders", "commandRequest": {"waitingType": "AllOfCompletion",
        "globalQueueCommands": [{"commandId": "orders", "queueName": "orders", "atLeast": 1, "atMost": 100}]}}}}');
