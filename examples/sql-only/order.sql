-- The application: inserts an order and starts its process, in one transaction.
-- psql -v id= -v customer= -v sku= -v quantity= -v price=
\set ON_ERROR_STOP on
BEGIN;
INSERT INTO shop.orders (id, customer, sku, quantity, price) VALUES (:'id', :'customer', :'sku', :'quantity', :'price');
SELECT xdb.start_process(:'id', 'Order');
COMMIT;
