#!/usr/bin/env bash
# One run of N processes on this machine: launch/local.sh [--dry_run] N --config=... --workdir=...
# This rehearses a pod. A single process already uses all local devices.
set -euo pipefail
dry_run=
[[ ${1:-} != "--dry_run" ]] || { dry_run=1 && shift; }
count=${1:?"usage: launch/local.sh [--dry_run] NUM_PROCESSES --config=... --workdir=..."}
shift
# Every process would take all GPUs of the machine; on a machine with GPUs use one process.
shared=(JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" JAX_NUM_PROCESSES="$count"
  JAX_COORDINATOR_ADDRESS="127.0.0.1:${PORT:-12321}")
set -m # a process group each: Ctrl-C reaches the processes only once, by `pass`
pids=()
for ((i = 0; i < count; i++)); do
  command=(env "${shared[@]}" JAX_PROCESS_ID="$i"
    "${PYTHON:-python}" -m scalelab.train "$@" --config.machine.distributed=True)
  if [[ -n $dry_run ]]; then
    printf '%q ' "${command[@]}" && echo
  else
    "${command[@]}" &
    pids+=($!)
  fi
done
received='' status=0
pass() {
  received=$1
  kill -s "$1" -- "${pids[@]}" 2>/dev/null || true
}
trap 'pass INT' INT
trap 'pass TERM' TERM HUP
# Looks at all of them twice a second, because the others would wait for one that has failed.
while [[ ${#pids[@]} -gt 0 ]]; do
  sleep 0.5
  for i in "${!pids[@]}"; do
    kill -0 "${pids[i]}" 2>/dev/null && continue
    code=0
    wait "${pids[i]}" || code=$?
    unset "pids[i]"
    [[ $code -eq 0 || $status -ne 0 ]] && continue
    status=$code
    [[ -n $received || $code -eq 75 || ${#pids[@]} -eq 0 ]] && continue
    echo "error: process $i of $count ended with exit code $code; ending the others" >&3
    kill -s KILL -- "${pids[@]}" || true
  done
done 3>&2 2>/dev/null # the shell would report each killed process
# 75: stopped by SIGTERM; the same command continues the run.
[[ $received != TERM || $status -eq 0 ]] || status=75
exit "$status"
