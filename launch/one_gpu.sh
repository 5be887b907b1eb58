#!/usr/bin/env bash
# Fills one GPU for some minutes with the runs of a study, side by side, and packs what is finished:
# launch/one_gpu.sh [--dry_run] MINUTES --config=STUDY --workdir=DIR [--workers=9] ...
# The packed runs are in DIR/packed. The same command continues the others.
set -euo pipefail
usage="usage: launch/one_gpu.sh [--dry_run] MINUTES --config=STUDY --workdir=DIR [--workers=N]"
dry_run=
[[ ${1:-} != "--dry_run" ]] || { dry_run=1 && shift; }
minutes=${1:?"$usage"}
shift
workdir='' config='' workers=
for word in "$@"; do
  case $word in
  --workdir=*) workdir=${word#*=} ;;
  --config=*) config=${word#*=} ;;
  --workers=*) workers=1 ;;
  esac
done
[[ -n $workdir && -n $config ]] || { echo "$usage" >&2 && exit 2; }
[[ -n $workers ]] || set -- "$@" --workers=9 # so many small runs fill a large card
study=("${PYTHON:-python}" -m scalelab.study)
# SIGTERM reaches all processes: each saves and ends, and `run` would continue it.
run=(timeout --signal=TERM --kill-after=60 "${minutes}m" "${study[@]}" run "$@")
pack=("${study[@]}" pack --workdir="$workdir" --to="$workdir/packed")
if [[ -n $dry_run ]]; then
  printf '%q ' "${run[@]}" && echo
  printf '%q ' "${pack[@]}" && echo
  exit
fi
status=0
"${run[@]}" || status=$?
[[ $status -ne 2 ]] || exit 2 # a mistake in config, data or arguments
found=("$workdir"/studies/*.json) # the folder may hold several studies
for file in "${found[@]}"; do
  name=${file##*/}
  if [[ ${#found[@]} -gt 1 ]]; then "${pack[@]}" --study="${name%.json}"; else "${pack[@]}"; fi
done
[[ $status -eq 124 || $status -eq 0 ]] || exit "$status"
[[ $status -eq 0 ]] || echo "$minutes minutes are over; the same command continues the study" >&2
