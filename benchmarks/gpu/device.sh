#!/bin/bash
# bash benchmarks/gpu/device.sh [STAGE...]: every check and timing on one CUDA device, within TOTAL seconds.
#
# smoke      one launch of each kind of kernel, each kind in a process of its own
# tests      tests/gpu in many processes
# passes     whole passes and steps of writing, with their distance from float32
# kernels    each kernel beside a plain product or PyTorch's
# sanitize   compute-sanitizer over small launches of each kernel
# tune       configurations around the pinned ones
# recurrent  recurrences beside PyTorch's
# fla        delta rules and linear attention over a tree beside fla-core (needs that package)
# reader     real questions by a real reader, beside the CPU's numbers (needs READER, a folder: see device_reader.py)
# profile    ncu of attention and the LM head
#
# Needs no network and no build. Writes to $OUT as it goes, so that a stage that dies or hangs loses only what it had
# not written: log.txt, tests.jsonl, rows.jsonl, sanitize.txt, profile*.txt. Exits with 1 if smoke, a test or memcheck
# failed or a stage could not run, and with 2 for a stage that there is not.
set -u
STAGES="smoke tests passes kernels sanitize tune recurrent fla reader profile"
for stage in "$@"; do
  case " $STAGES " in *" $stage "*) ;; *) echo "device.sh: no stage $stage; there are: $STAGES"; exit 2 ;; esac
done
ROOT=$PWD
HERE=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-/tmp/out}
mkdir -p "$OUT"
rm -f "$OUT"/{tests,rows}.jsonl "$OUT"/{log,logprob,sanitize,profile}.txt  # of an earlier call
TOTAL=${TOTAL:-575}
BEGAN=$SECONDS
FAILED=0
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore::UserWarning
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton} FASTREADER_CACHE=${FASTREADER_CACHE:-/tmp/fastreader}
export PYTHONPATH=$ROOT/src:$HERE:$ROOT/tests:$ROOT/tests/ops:$ROOT/benchmarks${PYTHONPATH:+:$PYTHONPATH}
PYTHON=${PYTHON:-python3}
exec 3>&1 > >(tee -a "$OUT/log.txt" >&3) 2>&1
TEE=$!

left() { echo $((TOTAL - (SECONDS - BEGAN))); }
say() { echo "== $(left) s left: $*"; }
within() { # within SECONDS COMMAND...: never beyond what is left
  local most=$1 have
  shift
  have=$(left)
  [ "$have" -lt 15 ] && { say "no time for $*"; return 124; }
  [ "$most" -gt $((have - 8)) ] && most=$((have - 8))
  timeout -k 5 "$most" "$@"
}
script() { # script STAGE SECONDS FILE ARGUMENTS...: it ends by itself before it is ended
  local stage=$1 seconds=$2 file=$3
  shift 3
  say "$stage"
  [ "$seconds" -gt $(($(left) - 8)) ] && seconds=$(($(left) - 8))
  [ "$seconds" -lt 20 ] && { say "no time for $stage"; FAILED=1; return; }
  within "$seconds" "$PYTHON" "$HERE/$file" "$@" --seconds $((seconds - 12)) || { echo "$stage: exit $?"; FAILED=1; }
}

smoke() { say smoke; within 60 "$PYTHON" "$HERE/smoke.py" || FAILED=1; }
tests() {
  say tests
  local options="-q -p rows_plugin -p no:cacheprovider -o addopts= -o timeout=100 -m gpu --tb=short --maxfail=40"
  # The LM head's tests take up to 12 GB each, the others at most 2 GB.
  within "${TESTS:-150}" "$PYTHON" -m pytest $options -n 3 --dist worksteal tests/gpu -k logprob >"$OUT/logprob.txt" 2>&1 &
  local logprob=$!
  within "${TESTS:-150}" "$PYTHON" -m pytest $options -n "${WORKERS:-12}" --dist worksteal tests/gpu -k "not logprob" |
    tail -100
  [ "${PIPESTATUS[0]}" -eq 0 ] || FAILED=1
  wait "$logprob" || { FAILED=1; tail -40 "$OUT/logprob.txt"; }
  "$PYTHON" "$HERE/rows_plugin.py" "$OUT/tests.jsonl"
}
passes() { script passes "${PASSES:-150}" device_passes.py; }
kernels() { script kernels "${KERNELS:-120}" device_kernels.py; }
sanitize() {
  say sanitize
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 within "${SANITIZE:-70}" compute-sanitizer --tool memcheck --error-exitcode 9 \
    --print-limit 5 "$PYTHON" "$HERE/small_calls.py" >"$OUT/sanitize.txt" 2>&1
  local code=$?
  echo "memcheck: exit $code"
  [ "$code" -eq 0 ] || FAILED=1
  tail -4 "$OUT/sanitize.txt"
}
tune() { script tune "${TUNE:-90}" device_kernels.py --tune; }
recurrent() { script recurrent "${RECURRENT:-60}" device_kernels.py --recurrent; }
fla() { script fla "${FLA:-100}" beside_fla.py; }
reader() {
  [ -n "${READER:-}" ] || { say "reader: READER names no folder"; FAILED=1; return; }
  script reader "${READING:-100}" device_reader.py "$READER"
}
profile() {
  say profile
  local kernel sections="--section SpeedOfLight --section WarpStateStats --section LaunchStats --section Occupancy"
  for kernel in tree_attention linear_logprob; do
    within 45 ncu --clock-control none --launch-skip 3 --launch-count 1 -k "regex:${kernel}_kernel" $sections \
      "$PYTHON" "$HERE/one_kernel.py" "$kernel" >>"$OUT/profile.txt" 2>&1
    echo "ncu of $kernel: exit $?"
  done
  tail -30 "$OUT/profile.txt"
}

[ $# -gt 0 ] || set -- smoke tests passes kernels sanitize tune recurrent profile  # fla and reader where they are named
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader || say "no nvidia-smi"
for stage in "$@"; do $stage; done
say "done"
"$PYTHON" "$HERE/device_summary.py" "$OUT"
exec >&3 2>&1
wait "$TEE"  # so that log.txt is whole
exit $FAILED
