#!/usr/bin/env bash
# The same command on every host of a TPU pod:
#   launch/tpu_pod.sh [--dry_run] NAME ZONE --config=... --workdir=gs-mounted-or-shared-folder
set -euo pipefail
dry_run=
[[ ${1:-} != "--dry_run" ]] || { dry_run=1 && shift; }
usage="usage: launch/tpu_pod.sh [--dry_run] NAME ZONE --config=... --workdir=..."
name=${1:?"$usage"} zone=${2:?"$usage"}
shift 2
command=(gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  cd scalelab && .venv/bin/python -m scalelab.train $(printf '%q ' "$@") --config.machine.distributed=True")
if [[ -n $dry_run ]]; then
  printf '%q ' "${command[@]}" && echo
else
  "${command[@]}"
fi
