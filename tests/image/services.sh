#!/usr/bin/env bash
# The services db, worker and console of docker-compose.yml, for scripts/image-test, with the environment that they have there.
# The console connects to the server's outer address, where passwords are asked for, as they are on a published port.
#   tests/image/services.sh CONTAINER DIRECTORY PYTHON
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$root"

container=$1 directory=$2 python=$3
read -r -a buildah <<<"$XDB_BUILDAH"
# The network of docker-compose.yml: the server at one address, the worker at another one.
ip link set lo up
ip address add 192.0.2.1/32 dev lo

# As in docker-compose.yml.
password="it's \\ of app"
database=(POSTGRES_DB=app POSTGRES_PASSWORD=of-the-superuser "XDB_APP_PASSWORD=$password")
worker=(PGHOST=192.0.2.1 PGDATABASE=app PGUSER=app "PGPASSWORD=$password" REMINDER_SECONDS=1)
command=(postgres -c xdb.allowed_worker_hosts=worker)

in_container() {
    local setting options=()
    for setting in "${database[@]}"; do options+=(--env "$setting"); done
    "${buildah[@]}" run "${options[@]}" \
        --volume "$root/examples/signup/tables.sql:/docker-entrypoint-initdb.d/20-signup.sql:ro" "$container" -- "$@"
}
healthy() { in_container xdb-healthy >"$directory/health.out" 2>&1; }
as_app() { env "${worker[@]}" psql -X -A -t -q -v ON_ERROR_STOP=1 "$@"; }
reminded() { [ "$(as_app -c "SELECT (xdb.get_local_attributes('signup-alice') ->> 'reminders')::int >= 1")" = t ]; }

server=
start() {
    in_container docker-entrypoint.sh "${command[@]}" >>"$directory/db.log" 2>&1 &
    server=$!
    eventually 60 healthy || {
        cat "$directory/db.log" "$directory/health.out"
        die "the container is not healthy"
    }
    cat "$directory/health.out"
}
stop() {
    # shellcheck disable=SC2016  # expanded there
    in_container bash -c 'kill -INT "$(head -n 1 "$PGDATA/postmaster.pid")"'
    wait "$server" || true
}

say "image-test: the server is healthy when its engine runs"
start
defer stop

say "image-test: the role app is an ordinary one, with a password, and superusers' processes stay off"
[ "$(as_app -c "SELECT rolsuper OR rolcreaterole OR rolbypassrls FROM pg_roles WHERE rolname = 'app'")" = f ]
[ "$(as_app -c "SHOW xdb.allow_superuser_processes")" = off ]
if env "${worker[@]}" PGPASSWORD=wrong psql -X -c 'SELECT 1' >/dev/null 2>&1; then die "any password is good enough"; fi
if grep -q "of app" "$directory/db.log"; then die "the log has the password"; fi

say "image-test: the worker registers itself, and the sign-up runs"
serving=(env -C examples/python "PYTHONPATH=$root/sdk/python/src" PYTHONDONTWRITEBYTECODE=1 "${worker[@]}" "$python" -m xdb)
"${serving[@]}" register sign_up:worker --name signup --url http://worker:8080 >/dev/null
"${serving[@]}" serve sign_up:worker --host 0.0.0.0 --port 8080 >"$directory/worker.log" 2>&1 &
as_app -v name=alice -v email=alice@example.com -v campaign=spring -f examples/signup/start.sql >/dev/null
eventually 60 reminded

say "image-test: the console shows the sign-up after the login"
"${buildah[@]}" run --user postgres --env PGHOST=192.0.2.1 --env PGDATABASE=app --env PGUSER=app "$container" -- \
    xdb console --login --read-only >"$directory/console.log" 2>&1 &
site=http://127.0.0.1:7433
logged_in() {
    curl -s -f -c "$directory/cookies" -H "Origin: $site" \
        --data-urlencode role=app --data-urlencode "password=$password" "$site/login"
}
shown() { logged_in && curl -s -f -b "$directory/cookies" "$site/" | grep -q signup-alice; }
eventually 60 shown || {
    cat "$directory/console.log"
    die "the console does not show the sign-up"
}

say "image-test: xdb doctor of the image finds no problem"
in_container xdb doctor -U postgres -d app -h 127.0.0.1 >"$directory/doctor.out" || {
    cat "$directory/doctor.out"
    die "xdb doctor finds a problem"
}

say "image-test: the data stays with the container's next start"
stop
if healthy; then die "a stopped server is healthy"; fi
start
[ "$(as_app -c "SELECT xdb.invoke_rpc('signup-alice', 'confirm', '\"link\"')")" = '"done"' ]
[ "$(as_app -c "SELECT xdb.wait_for_process('signup-alice', timeout => '1 minute') ->> 'result'")" = "done" ]
say "image-test: ok"
