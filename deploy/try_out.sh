#!/bin/sh
# Prepare a small federation of two example agents with the operator's own commands: a plan, anchor texts, a one-time
# token for each agent. Safe to repeat: what is there is left alone.
#
#   try_out.sh ADMIN_TOKEN_FILE ROOT_CERTIFICATE FOLDER
#
# Leaves in FOLDER what the agents need: <silo>.token, and root.crt to trust the coordinator's certificate by.
# TESSERA_URL says where the coordinator is.
set -eu
root_certificate=$2
enrolment=$3
here=$(dirname "$0")
TESSERA_TOKEN=$(cat "$1")
export TESSERA_TOKEN
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

for silo in aster cedar; do
    if [ ! -s "$enrolment/$silo.token" ]; then
        # --replace: one that was made and not written, before this script was killed, is lost.
        tessera enrolment create "$federation" "$silo" --replace --json | pick 'it["token"]' >"$enrolment/$silo.new"
        mv "$enrolment/$silo.new" "$enrolment/$silo.token"
    fi
done
cp "$root_certificate" "$enrolment/root.crt"

if [ "$(tessera federation show "$federation" --json | pick 'it["state"]')" = open ]; then
    tessera federation start "$federation"
fi
