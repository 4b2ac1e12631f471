#!/usr/bin/env bash
# What the official image of PostgreSQL documents about its entrypoint, as far as packaging/docker relies on it: POSTGRES_USER,
# POSTGRES_DB, POSTGRES_PASSWORD, PGDATA and /docker-entrypoint-initdb.d. For the image's test alone.
set -euo pipefail

if [ "${1:-}" != postgres ]; then exec "$@"; fi
if [ "$(id -u)" -eq 0 ]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chown -R postgres: "$(dirname "$PGDATA")" /var/run/postgresql
    chmod 700 "$PGDATA"
    exec gosu postgres "$0" "$@"
fi

export POSTGRES_USER=${POSTGRES_USER:-postgres}
export POSTGRES_DB=${POSTGRES_DB:-$POSTGRES_USER}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?the superuser needs a password}"
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --no-instructions >/dev/null
    printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    PGUSER=$POSTGRES_USER pg_ctl -D "$PGDATA" -o "$(printf '%q ' "${@:2}" -c "listen_addresses=")" -w start >/dev/null
    export PGPASSWORD=$POSTGRES_PASSWORD
    if [ "$POSTGRES_DB" != postgres ]; then
        psql -X -q -U "$POSTGRES_USER" -d postgres -v db="$POSTGRES_DB" <<<'CREATE DATABASE :"db"'
    fi
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
        *.sh)
            # shellcheck disable=SC1090  # whichever the image has
            if [ -x "$file" ]; then "$file"; else . "$file"; fi
            ;;
        *.sql) psql -X -q -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$file" ;;
        esac
    done
    PGUSER=$POSTGRES_USER pg_ctl -D "$PGDATA" -m fast -w stop >/dev/null
    unset PGPASSWORD
fi
exec "$@"
