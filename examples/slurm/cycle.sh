#!/bin/bash
# One turn of a silo, for cron or scrontab: deliver what is made, fetch the next round, and submit its job.
#   PATH=/opt/tessera/.venv/bin:/usr/bin:/bin cycle.sh /silos/aster/silo.toml [options of sbatch]
# The job has the PATH of its submission.
set -eu
config=${1:?the path of the silo.toml}
shift
job=tessera-$(basename "$(dirname "$(realpath "$config")")")

for program in tessera squeue sbatch; do
    if ! command -v "$program" > /dev/null; then
        echo "cycle.sh: $program is not on PATH=$PATH; begin the line of cron with PATH=..." >&2
        exit 1
    fi
done

# A job of this silo waits or runs: it has the folder, and there is nothing to deliver yet.
queued=$(squeue --me --noheader --name="$job")
if [ -n "$queued" ]; then
    exit 0
fi
# 75: there is no work yet.
tessera agent sync --config "$config" --wait 60 || exit $(($? == 75 ? 0 : 1))
sbatch --job-name="$job" "$@" "$(dirname "$0")/round.sbatch" "$config"
