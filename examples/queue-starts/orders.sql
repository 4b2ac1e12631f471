-- Run this as a role that may use XDB, after setup.sql.
SELECT xdb.start_process('orders', 'Orders');
SELECT xdb.publish_global('orders', '{"number": "1", "customer": "alice"}', key => 'alice');
SELECT xdb.publish_global('orders', '{"number": "2", "customer": "bob"}', key => 'bob');
-- This number is there already: the message goes to the queue orders.refused.
SELECT xdb.publish_global('orders', '{"number": "1", "customer": "carol"}', key => 'carol');
