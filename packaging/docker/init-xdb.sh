#!/usr/bin/env bash
# Run by the image's entrypoint when a new data directory is made: the extension, and a role for applications.
#
# The role app is an ordinary one. It may register workers and process types, and owns the schema app. Its password is
# XDB_APP_PASSWORD, or the content of the file XDB_APP_PASSWORD_FILE. Without one, it can connect only from inside of the container.
set -euo pipefail

user=${POSTGRES_USER:-postgres}
[ "$user" != app ] || { echo "XDB: POSTGRES_USER is app, which is the name of the role for applications: choose another name" >&2 && exit 1; }
password=${XDB_APP_PASSWORD:-}
[ -z "${XDB_APP_PASSWORD_FILE:-}" ] || password=$(<"$XDB_APP_PASSWORD_FILE")

export password
psql -X -q -v ON_ERROR_STOP=1 --no-password -U "$user" -d "${POSTGRES_DB:-$user}" >/dev/null <<'SQL'
\getenv password password
CREATE EXTENSION xdb;
SELECT NULLIF(:'password', '') IS NOT NULL AS has_password \gset
CREATE ROLE app LOGIN;
\if :has_password
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
ALTER ROLE app PASSWORD :'password';
\endif
SELECT xdb.grant_usage('app', deployer => true);
CREATE SCHEMA AUTHORIZATION app;
SQL
