#!/bin/sh
# Make the secrets that docker-compose.yml reads. Safe to repeat: a secret that is there is left alone.
#
# The folder is closed to everybody else on this machine. The files in it are readable, because containers see
# them with the owner and the mode that they have here, and run as users of their own.
set -eu
folder=$(dirname "$0")/../secrets
mkdir -p "$folder"
chmod 0700 "$folder"
umask 077
for name in tessera_admin_token tessera_database_password tessera_superuser_password \
    tessera_signing_key grafana_password; do
    if [ ! -s "$folder/$name" ]; then
        head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' >"$folder/$name.new"
        chmod 0444 "$folder/$name.new"
        mv "$folder/$name.new" "$folder/$name"
        echo "made secrets/$name"
    fi
done
