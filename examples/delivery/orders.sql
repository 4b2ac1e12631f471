-- The application, after setup.sql: an order and its process, both or neither.
BEGIN;
INSERT INTO public.deliveries (id, article) VALUES ('order-1', 'bicycle'), ('order-2', 'lamp');
SELECT xdb.start_process(id, 'Delivery') FROM public.deliveries;
COMMIT;

-- The warehouse has sent the parcel of the first order. With its id, a repeated message counts once.
SELECT xdb.publish('order-1', 'sent', '"parcel 7"', message_id => 'parcel 7');

-- The customer recalls the second one. If it had been sent, this would raise XD007.
SELECT xdb.publish('order-2', 'recall', '"changed my mind"');
