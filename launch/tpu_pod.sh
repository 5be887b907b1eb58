#!/usr/bin/env bash
# The same command on every host of a TPU pod:
#   launch/tpu_pod.sh NAME ZONE --config=... --workdir=gs-mounted-or-shared-folder
set -euo pipefail
name=${1:?"usage: launch/tpu_pod.sh NAME ZONE --config=... --workdir=..."}
zone=${2:?"usage: launch/tpu_pod.sh NAME ZONE --config=... --workdir=..."}
shift 2
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  cd scalelab && .venv/bin/python -m scalelab.train $(printf '%q ' "$@") --config.machine.distributed=True"
