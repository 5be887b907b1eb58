#!/usr/bin/env bash
# One run of N processes on this machine: launch/local.sh N --config=... --workdir=...
# This rehearses a pod. A single process already uses all local devices.
set -euo pipefail
count=${1:?"usage: launch/local.sh NUM_PROCESSES --config=... --workdir=..."}
shift
# Every process would take all GPUs of the machine; on a machine with GPUs use one process.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
export JAX_COORDINATOR_ADDRESS="127.0.0.1:${PORT:-12321}" JAX_NUM_PROCESSES=$count
pids=()
for ((i = 0; i < count; i++)); do
  JAX_PROCESS_ID=$i ${PYTHON:-python} -m scalelab.train "$@" --config.machine.distributed=True &
  pids+=($!)
done
trap 'kill -INT "${pids[@]}" 2>/dev/null || true' INT TERM
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
