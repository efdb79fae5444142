#!/bin/sh
# Begin as PostgreSQL's image does: a new volume gets a cluster, its database, and what the scripts of
# /docker-entrypoint-initdb.d do. Until then the server listens on its socket alone.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086  # options, several words
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" ${POSTGRES_INITDB_ARGS:-}
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses='' -c unix_socket_directories=/var/run/postgresql" start
    psql --username postgres --dbname postgres --set db="$POSTGRES_DB" <<'SQL'
CREATE DATABASE :"db";
SQL
    for script in /docker-entrypoint-initdb.d/*.sh; do
        . "$script"
    done
    pg_ctl -m fast -w stop
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
