#!/usr/bin/env bash
# The same command on every host of a TPU pod:
#   [DRY_RUN=1] launch/tpu_pod.sh NAME ZONE --config=... --workdir=gs-mounted-or-shared-folder
set -euo pipefail
usage="usage: [DRY_RUN=1] launch/tpu_pod.sh NAME ZONE --config=... --workdir=..."
name=${1:?"$usage"} zone=${2:?"$usage"}
shift 2
command=(gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  cd scalelab && .venv/bin/python -m scalelab.train $(printf '%q ' "$@") --config.machine.distributed=True")
if [[ -n ${DRY_RUN:-} ]]; then
  printf '%q ' "${command[@]}" && echo
else
  "${command[@]}"
fi
