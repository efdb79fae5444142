#!/bin/bash
# One turn of a silo, for cron or scrontab: deliver what is made, fetch the next round, and submit its job.
#   cycle.sh /silos/aster/silo.toml [options of sbatch]
set -eu
config=${1:?the path of the silo.toml}
shift
job=tessera-$(basename "$(dirname "$(realpath "$config")")")

# A job of this silo waits or runs: it has the folder, and there is nothing to deliver yet.
if [ -n "$(squeue --me --noheader --name="$job")" ]; then
    exit 0
fi
# 75: there is no work yet.
tessera agent sync --config "$config" --wait 60 || exit $(($? == 75 ? 0 : 1))
sbatch --job-name="$job" "$@" "$(dirname "$0")/round.sbatch" "$config"
