#!/bin/sh
# Make the coordinator's role in a new database: it owns that, and may neither read the server's files nor run
# programs there, as a superuser may. The image runs or sources this once, before it takes connections over TCP.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" \
    --set password="$(cat /run/secrets/tessera_database_password)" <<'SQL'
CREATE ROLE tessera LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'password';
ALTER DATABASE tessera OWNER TO tessera;
SQL
