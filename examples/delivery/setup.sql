-- A delivery: the warehouse is reminded every day until it has sent the parcel, and the customer may recall the order until
-- then. Run this as the role of the application. The role is a deployer, and may create in the schema `public`.
--
-- Two guards wait beside `Send`. `Remind` leaves it waiting, `Recall` ends it. If the parcel and the recall come at the same
-- moment, one of them is first, and the other one changes nothing.

CREATE TABLE public.deliveries (id text PRIMARY KEY, article text NOT NULL, status text NOT NULL DEFAULT 'ordered');
CREATE TABLE public.reminders (delivery text NOT NULL REFERENCES public.deliveries, reminded_at timestamptz NOT NULL DEFAULT clock_timestamp());

-- After a day. Then it waits for another day, while `Send` waits.
CREATE FUNCTION public.remind(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO public.reminders (delivery) VALUES (request #>> '{context,processId}')
    RETURNING '{"stateDecision": {"nextStates": [{"stateId": "Remind"}]}}'::jsonb $$;

-- The customer has recalled the order.
CREATE FUNCTION public.recall(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.deliveries SET status = 'recalled' WHERE id = request #>> '{context,processId}'
    RETURNING jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
        'closeType', 'FORCE_FAIL_PROCESS', 'closeInput', request #> '{commandResults,localQueueResults,0,messages,0,payload}'))) $$;

-- The warehouse has sent the parcel. The process completes if no recall has come meanwhile. FORCE also ends a reminder
-- that is under way.
CREATE FUNCTION public.send(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.deliveries SET status = 'sent' WHERE id = request #>> '{context,processId}'
    RETURNING jsonb_build_object('stateDecision', jsonb_build_object(
        'conditionalClose', jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS', 'whenLocalQueuesEmpty', '["recall"]'::jsonb,
            'closeInput', request #> '{commandResults,localQueueResults,0,messages,0,payload}'),
        'nextStates', '[{"stateId": "Recall"}]'::jsonb)) $$;

SELECT xdb.register_process_type('Delivery', NULL, '{
    "startingState": "Send", "localQueues": ["sent", "recall"],
    "states": {
        "Send": {"executeFunction": "public.send", "guards": ["Remind", "Recall"],
            "commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "sent"}]}},
        "Remind": {"executeFunction": "public.remind", "interrupting": false,
            "commandRequest": {"waitingType": "AnyOfCompletion", "timerCommands": [{"delayInSeconds": 86400}]}},
        "Recall": {"executeFunction": "public.recall",
            "commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "recall"}]}}}}');
