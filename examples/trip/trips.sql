-- The application, after setup.sql: a trip and its process, both or neither.
BEGIN;
INSERT INTO public.trips (id, customer, flight, hotel, price, begins_at) VALUES ('trip-1', 'alice', 'Rome', 'Forum', 250, now() + interval '30 days');
SELECT xdb.start_process('trip-1', 'Trip');
COMMIT;

-- bob can't pay: his seat and his room are free again.
BEGIN;
INSERT INTO public.trips (id, customer, flight, hotel, price, begins_at) VALUES ('trip-2', 'bob', 'Rome', 'Forum', 250, now() + interval '30 days');
SELECT xdb.start_process('trip-2', 'Trip');
COMMIT;

-- alice is ill. If her trip had begun, this would raise XD007.
SELECT xdb.invoke_rpc('trip-1', 'cancel', '"ill"');
