-- Functions of the database handle an order: there is no worker and no HTTP. Run once, as a superuser.
\set ON_ERROR_STOP on
CREATE ROLE app LOGIN;
CREATE EXTENSION xdb;
SELECT xdb.grant_usage('app');
CREATE SCHEMA shop AUTHORIZATION app;
SET ROLE app;

CREATE TABLE shop.stock (sku text PRIMARY KEY, quantity int NOT NULL CHECK (quantity >= 0));
CREATE TABLE shop.account (owner text PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0));
CREATE TABLE shop.orders (
    id text PRIMARY KEY, customer text NOT NULL REFERENCES shop.account, sku text NOT NULL REFERENCES shop.stock,
    quantity int NOT NULL, price numeric NOT NULL, status text NOT NULL DEFAULT 'new');
INSERT INTO shop.stock VALUES ('teapot', 3), ('cup', 20);
INSERT INTO shop.account VALUES ('alice', 100), ('bob', 10);

-- The function of a state gets the request that a worker would get, and returns the answer that a worker would send.
-- Its writes and its answer are one transaction.
CREATE FUNCTION shop.reserve(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    o CONSTANT shop.orders := (SELECT orders FROM shop.orders WHERE id = request->'context'->>'processId');
BEGIN
    UPDATE shop.stock SET quantity = quantity - o.quantity WHERE sku = o.sku;
    UPDATE shop.orders SET status = 'reserved' WHERE id = o.id;
    RETURN '{"stateDecision": {"nextStates": [{"stateId": "Charge"}]}}';
END $$;

-- If a constraint refuses the update, the attempt fails, and the function's writes are rolled back.
CREATE FUNCTION shop.charge(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    o CONSTANT shop.orders := (SELECT orders FROM shop.orders WHERE id = request->'context'->>'processId');
BEGIN
    UPDATE shop.account SET balance = balance - o.price WHERE owner = o.customer;
    UPDATE shop.orders SET status = 'paid' WHERE id = o.id;
    RETURN '{"stateDecision": {"nextStates": [{"stateId": "Ship"}]}}';
END $$;

-- When the retries of Charge are spent, the state Release runs. It returns what was reserved to the stock.
CREATE FUNCTION shop.release(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    o CONSTANT shop.orders := (SELECT orders FROM shop.orders WHERE id = request->'context'->>'processId');
BEGIN
    UPDATE shop.stock SET quantity = quantity + o.quantity WHERE sku = o.sku;
    UPDATE shop.orders SET status = 'cancelled' WHERE id = o.id;
    RETURN jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
        'closeType', 'FORCE_FAIL_PROCESS', 'closeInput', request->'context'->'recoverFromError'->'detail')));
END $$;

-- Waits for a message that the parcel has left, or for a day.
CREATE FUNCTION shop.await_parcel(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT '{"commandRequest": {"waitingType": "AnyOfCompletion",
        "timerCommands": [{"commandId": "patience", "delayInSeconds": 86400}],
        "localQueueCommands": [{"commandId": "left", "queueName": "parcel"}]}}'::jsonb $$;
CREATE FUNCTION shop.ship(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    UPDATE shop.orders SET status = CASE request#>>'{commandResults,localQueueResults,0,status}'
        WHEN 'COMPLETED_COMMAND' THEN 'shipped' ELSE 'late' END WHERE id = request->'context'->>'processId';
    RETURN '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "thank you"}}}';
END $$;

-- The function of an RPC runs in the caller's transaction.
CREATE FUNCTION shop.status(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('output', (SELECT status FROM shop.orders WHERE id = request->'context'->>'processId')) $$;

RESET ROLE;
SELECT xdb.register_process_type('Order', NULL, '{
    "startingState": "Reserve",
    "states": {
        "Reserve": {"skipWaitUntil": true, "executeFunction": "shop.reserve", "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 5}},
        "Charge": {"skipWaitUntil": true, "executeFunction": "shop.charge", "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 3},
            "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Release"}},
        "Release": {"skipWaitUntil": true, "executeFunction": "shop.release"},
        "Ship": {"waitUntilFunction": "shop.await_parcel", "executeFunction": "shop.ship"}},
    "localQueues": ["parcel"],
    "rpcs": {"status": {"function": "shop.status"}}}');
