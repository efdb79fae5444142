#!/bin/sh
# Prepare a small federation of two example agents with the operator's own commands: a plan, anchor texts, a one-time
# token for each agent. Safe to repeat: what is there is left alone.
#
#   try_out.sh ADMIN_TOKEN_FILE SILO=FOLDER...
#
# Leaves in each folder, which nobody but this agent mounts, its one-time token: a file named token.
# TESSERA_URL says where the coordinator is.
set -eu
here=$(dirname "$0")
TESSERA_TOKEN=$(cat "$1")
export TESSERA_TOKEN
shift
umask 077

# Read JSON from standard input and print what a Python expression finds in it.
pick() {
    python -c "import json, sys; it = json.load(sys.stdin); print($1)"
}

federation=$(tessera federation list --json | pick 'next((f["id"] for f in it[::-1] if f["name"] == "try-out"), "")')
if [ -z "$federation" ]; then
    federation=$(tessera federation create --plan "$here/try_out.json" --json | pick 'it["id"]')
fi
tessera anchors put "$federation" "$here/../examples/anchors.json"

for place in "$@"; do
    silo=${place%%=*}
    folder=${place#*=}
    if [ ! -s "$folder/token" ]; then
        # --replace: one that was made and not written, before this script was killed, is lost.
        tessera enrolment create "$federation" "$silo" --replace --json | pick 'it["token"]' >"$folder/new"
        mv "$folder/new" "$folder/token"
    fi
done

if [ "$(tessera federation show "$federation" --json | pick 'it["state"]')" = open ]; then
    tessera federation start "$federation"
fi
