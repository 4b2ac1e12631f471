-- A trip of a seat, a room and a payment: all of them, or none. It can be cancelled until it begins.
-- Run this as the role of the application. The role is a deployer, and may create in the schema `public`.
--
-- Each step is a function of the database: its writes and its answer are one transaction. So a step that has not
-- completed has done nothing, and what is undone is undone once. A cancellation waits for a function that runs.
-- Steps that call services of other companies belong to a worker: see examples/python/trip.py.

CREATE TABLE public.flights (flight text PRIMARY KEY, seats int NOT NULL CHECK (seats >= 0));
CREATE TABLE public.hotels (hotel text PRIMARY KEY, rooms int NOT NULL CHECK (rooms >= 0));
CREATE TABLE public.accounts (customer text PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0));
CREATE TABLE public.trips (
    id text PRIMARY KEY, customer text NOT NULL REFERENCES public.accounts, flight text NOT NULL REFERENCES public.flights,
    hotel text NOT NULL REFERENCES public.hotels, price numeric NOT NULL, begins_at timestamptz NOT NULL, status text NOT NULL DEFAULT 'new');
INSERT INTO public.flights VALUES ('Rome', 3);
INSERT INTO public.hotels VALUES ('Forum', 3);
INSERT INTO public.accounts VALUES ('alice', 1000), ('bob', 10);

-- The trip of a request. Its id is that of the process.
CREATE FUNCTION public.trip_of(request jsonb) RETURNS public.trips LANGUAGE sql STABLE AS $$
    SELECT trips FROM public.trips WHERE id = request #>> '{context,processId}' $$;

CREATE FUNCTION public.begin_trip(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT '{"stateDecision": {"nextStates": [{"stateId": "BookSeat"}]}}'::jsonb $$;
CREATE FUNCTION public.book_seat(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.flights SET seats = seats - 1 WHERE flight = (public.trip_of(request)).flight
    RETURNING '{"stateDecision": {"nextStates": [{"stateId": "BookRoom"}]}}'::jsonb $$;
CREATE FUNCTION public.book_room(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.hotels SET rooms = rooms - 1 WHERE hotel = (public.trip_of(request)).hotel
    RETURNING '{"stateDecision": {"nextStates": [{"stateId": "Pay"}]}}'::jsonb $$;
CREATE FUNCTION public.pay(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.trips SET status = 'booked' WHERE id = (public.trip_of(request)).id;
    UPDATE public.accounts SET balance = balance - (public.trip_of(request)).price WHERE customer = (public.trip_of(request)).customer
    RETURNING '{"stateDecision": {"nextStates": [{"stateId": "Travel"}]}}'::jsonb $$;

-- Waits until the trip begins.
CREATE FUNCTION public.await_begin(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('commandRequest', jsonb_build_object('waitingType', 'AnyOfCompletion',
        'timerCommands', jsonb_build_array(jsonb_build_object('fireAt', (public.trip_of(request)).begins_at)))) $$;
CREATE FUNCTION public.travel(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "a good trip"}}}'::jsonb $$;

-- What undoes these steps. The latest is undone first, so `Begin` is undone last.
CREATE FUNCTION public.refund(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.accounts SET balance = balance + (public.trip_of(request)).price WHERE customer = (public.trip_of(request)).customer
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'::jsonb $$;
CREATE FUNCTION public.free_room(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.hotels SET rooms = rooms + 1 WHERE hotel = (public.trip_of(request)).hotel
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'::jsonb $$;
CREATE FUNCTION public.free_seat(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.flights SET seats = seats + 1 WHERE flight = (public.trip_of(request)).flight
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'::jsonb $$;
CREATE FUNCTION public.cancelled(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.trips SET status = 'cancelled' WHERE id = (public.trip_of(request)).id
    RETURNING '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'::jsonb $$;

-- The RPC `cancel` ends what waits, and undoes what has completed, which may be nothing. Its input is the reason.
CREATE FUNCTION public.cancel(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    UPDATE public.trips SET status = 'cancelled' WHERE id = (public.trip_of(request)).id
    RETURNING jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
        'closeType', 'COMPENSATE_PROCESS', 'closeInput', request->'input'))) $$;

-- A step whose attempts are spent undoes the trip too.
SELECT xdb.register_process_type('Trip', NULL, '{
    "startingState": "Begin",
    "states": {
        "Begin": {"skipWaitUntil": true, "executeFunction": "public.begin_trip", "compensationStateId": "Cancelled"},
        "BookSeat": {"skipWaitUntil": true, "executeFunction": "public.book_seat", "compensationStateId": "FreeSeat",
            "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 3},
            "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}},
        "BookRoom": {"skipWaitUntil": true, "executeFunction": "public.book_room", "compensationStateId": "FreeRoom",
            "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 3},
            "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}},
        "Pay": {"skipWaitUntil": true, "executeFunction": "public.pay", "compensationStateId": "Refund",
            "executeApiRetryPolicy": {"initialIntervalSeconds": 0.2, "maximumAttempts": 3},
            "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}},
        "Travel": {"waitUntilFunction": "public.await_begin", "executeFunction": "public.travel"},
        "Refund": {"skipWaitUntil": true, "executeFunction": "public.refund"},
        "FreeRoom": {"skipWaitUntil": true, "executeFunction": "public.free_room"},
        "FreeSeat": {"skipWaitUntil": true, "executeFunction": "public.free_seat"},
        "Cancelled": {"skipWaitUntil": true, "executeFunction": "public.cancelled"}},
    "rpcs": {"cancel": {"function": "public.cancel"}}}');
