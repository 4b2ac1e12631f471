-- From 0.2.0 to 0.3.0.

-- It has one column more.
DROP FUNCTION xdb.status();
