-- What the application does when a user signs up: its own row and the process, both or neither.
-- The psql variables name, email and campaign are those of the user.

BEGIN;
INSERT INTO invitations (user_id, campaign) VALUES (:'name', :'campaign');
SELECT xdb.start_process(
    'signup-' || :'name', 'UserSignup',
    global_attribute_pk => :'name',
    global_attributes   => jsonb_build_object('form', jsonb_build_object('name', :'name', 'email', :'email')),
    local_attributes    => '{"reminders": 0}');
COMMIT;
