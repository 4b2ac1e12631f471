-- A nightly report: a schedule starts a process, which starts a child for each shop and adds up what they have counted.
-- Run this as the role of the application. The role is a deployer, and may create in the schema `public`.

CREATE TABLE public.shops (shop text PRIMARY KEY);
CREATE TABLE public.sales (shop text NOT NULL REFERENCES public.shops, amount numeric NOT NULL, sold_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE public.reports (id text PRIMARY KEY, total numeric NOT NULL, missing text[] NOT NULL);

-- A child for each shop, at most 1000. When a child closes, in whatever way, the queue `closed` gets a message.
-- Because of their timeout, the report does not wait for ever.
CREATE FUNCTION public.begin_report(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object(
        'startProcesses', jsonb_agg(jsonb_build_object('processType', 'ShopSales', 'input', shop,
            'processId', request #>> '{context,processId}' || '/' || shop, 'timeoutSeconds', 1800, 'onClose', 'closed')),
        'stateDecision', jsonb_build_object('nextStates', jsonb_build_array(jsonb_build_object(
            'stateId', 'AddUp', 'stateInput', count(*)))))
    FROM public.shops $$;

-- Waits for as many messages as there are children.
CREATE FUNCTION public.await_children(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE request->'stateInput' WHEN '0' THEN '{"commandRequest": {"waitingType": "EmptyCommand"}}'::jsonb
        ELSE jsonb_build_object('commandRequest', jsonb_build_object('waitingType', 'AllOfCompletion',
            'localQueueCommands', jsonb_build_array(jsonb_build_object('queueName', 'closed', 'count', request->'stateInput')))) END $$;

-- A shop that has not been counted is missing in the report.
CREATE FUNCTION public.add_up(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO public.reports
    SELECT request #>> '{context,processId}', coalesce(sum((child->>'result')::numeric), 0),
        coalesce(array_agg(split_part(child->>'processId', '/', -1) ORDER BY 1) FILTER (WHERE child->>'status' <> 'COMPLETED'), '{}')
    FROM jsonb_path_query(request, '$.commandResults.localQueueResults[0].messages[*].payload') AS child
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}'::jsonb $$;

-- The child: the sales of one shop in the last 24 hours.
CREATE FUNCTION public.count_sales(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
        'closeType', 'GRACEFUL_COMPLETE_PROCESS', 'closeInput', coalesce(sum(amount), 0))))
    FROM public.sales WHERE shop = request->>'stateInput' AND sold_at > now() - interval '1 day' $$;

SELECT xdb.register_process_type('NightlyReport', NULL, '{
    "startingState": "Begin", "localQueues": ["closed"],
    "states": {"Begin": {"skipWaitUntil": true, "executeFunction": "public.begin_report"},
               "AddUp": {"waitUntilFunction": "public.await_children", "executeFunction": "public.add_up"}}}');
SELECT xdb.register_process_type('ShopSales', NULL, '{
    "startingState": "Count",
    "states": {"Count": {"skipWaitUntil": true, "executeFunction": "public.count_sales",
                         "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 5}}}}');
-- Once for each database.
SELECT xdb.register_process_type('Schedule', NULL, '{
    "startingState": "Tick", "history": {"keepLast": 100},
    "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}}');
