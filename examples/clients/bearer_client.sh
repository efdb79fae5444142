#!/bin/sh
# A client from curl, jq and openssl, for a federation whose plan says "privacy": {"allow_bearer_clients": true}
# and whose strategy needs no signature, like fedavg. It enrols and takes part until the end.
#
#   bearer_client.sh URL NAME FOLDER < token
#
# Where a real one would train, this one delivers what it was served. The credential that is kept in FOLDER is a
# secret that travels with every request: use https.
set -eu
url=$1 name=$2 folder=$3
umask 077
mkdir -p "$folder"
profile='{"architecture": "LlamaForCausalLM", "base_model": "toy-000000000000", "hidden_size": 4, "layers": 4,
  "shapes": {"q": [4, 4], "k": [4, 4], "v": [4, 4], "o": [4, 4], "gate": [4, 4], "up": [4, 4], "down": [4, 4]},
  "agent_version": "curl", "protocol_version": 2}'

# A command line is everybody's to read, so secrets go to curl through files.
if [ ! -s "$folder/member.json" ]; then
    read -r token
    [ -s "$folder/retry.key" ] || openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n' >"$folder/retry.key"
    jq -n --arg token "$token" --arg name "$name" --argjson profile "$profile" --rawfile key "$folder/retry.key" \
        '{token: $token, name: $name, profile: $profile, retry_key: $key}' |
        curl -sS --fail-with-body --retry 5 -H 'Content-Type: application/json' --data-binary @- \
            "$url/v1/enrolments" >"$folder/member.new"
    mv "$folder/member.new" "$folder/member.json"
fi
jq -r '"header = \"Authorization: Bearer \(.credential)\""' "$folder/member.json" >"$folder/curl.conf"
federation=$(jq -r .federation_id "$folder/member.json")
client=$(jq -r .client_id "$folder/member.json")
rounds=$url/v1/federations/$federation/rounds

ask() {
    curl -sS --fail-with-body -K "$folder/curl.conf" "$@"
}

# A safetensors file is 8 bytes of length, a JSON header of that length, and the values.
deliver() {
    length=$(od -An -tu8 -N8 "$folder/weights" | tr -d ' ')
    base=sha256:$(openssl dgst -sha256 -r "$folder/weights" | cut -d ' ' -f 1)
    manifest=$(jq -cn --arg f "$federation" --argjson r "$1" --arg c "$client" --arg b "$base" \
        '{version: 1, kind: "update", federation: $f, round: $r, client: $c, base: $b, pack: null, examples: 1,
          recipe: {}}')
    head -c $((8 + length)) "$folder/weights" | tail -c "$length" |
        jq -cj --arg manifest "$manifest" '.__metadata__ = {tessera: $manifest}' >"$folder/header"
    size=$(wc -c <"$folder/header")
    {
        printf "\\$(printf %03o $((size % 256)))\\$(printf %03o $((size / 256)))\\0\\0\\0\\0\\0\\0"
        cat "$folder/header"
        tail -c +$((9 + length)) "$folder/weights"
    } >"$folder/update"
    digest=$(openssl dgst -sha256 -binary "$folder/update" | openssl base64 -A)
    ask -o /dev/null -X PUT --data-binary @"$folder/update" -H "Content-Digest: sha-256=:$digest:" \
        -H 'Content-Type: application/vnd.tessera.adapter+safetensors' "$rounds/$1/update"
}

while :; do
    status=$(ask -o "$folder/brief" -w '%{http_code}' "$rounds/current")
    if [ "$status" = 204 ]; then
        sleep 1
        continue
    fi
    [ "$(jq -r .state "$folder/brief")" != finished ] || break
    number=$(jq -r .round "$folder/brief")
    ask -o /dev/null -X POST "$rounds/$number/join"
    ask -o "$folder/weights" "$rounds/$number/weights"
    deliver "$number"
    echo "round $number: $(wc -c <"$folder/update") bytes delivered"
done
echo "finished before round $(jq -r .round "$folder/brief")"
