#!/bin/bash
# bash benchmarks/gpu/device.sh [STAGE...]: all checks and timings on one CUDA device, in at most TOTAL seconds.
# Writes to $OUT as it goes, so that a stage that dies or hangs loses only what it had not written. Needs no network.
set -u
ROOT=$PWD; OUT=${OUT:-/tmp/out}; HERE=$(cd "$(dirname "$0")" && pwd); mkdir -p "$OUT"
TOTAL=${TOTAL:-575}; BEGAN=$SECONDS
export OUT PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=/tmp/triton FASTREADER_CACHE=/tmp/fastreader PYTORCH_NVML_BASED_CUDA_CHECK=1
export PYTHONPATH=$ROOT/src:$HERE:$ROOT/tests:$ROOT/tests/ops:$ROOT/benchmarks/gpu:$ROOT/benchmarks
exec > >(tee -a "$OUT/log.txt") 2>&1
left() { echo $((TOTAL - (SECONDS - BEGAN))); }
say() { echo "== $(left) s left: $*"; }
within() {  # within SECONDS COMMAND...: never beyond what is left
  local most=$1 have; shift; have=$(left); [ "$have" -lt 15 ] && { say "no time for $*"; return 124; }
  [ "$most" -gt $((have - 8)) ] && most=$((have - 8)); timeout -k 5 "$most" "$@"; }
FAILED=0
smoke() { say smoke; within 60 python3 "$HERE/smoke.py" || FAILED=1; }
tests() {
  say tests; local options="-q -p rows_plugin -p no:cacheprovider -o addopts= -o timeout=100 -m gpu --tb=short --maxfail=40"
  # The LM head's tests take up to 12 GB each; the others at most 2 GB.
  ( within ${TESTS:-150} python3 -m pytest $options -n 3 --dist worksteal tests/gpu -k logprob 2>&1 | tail -40 ) &
  within ${TESTS:-150} python3 -m pytest $options -n 12 --dist worksteal tests/gpu -k "not logprob" 2>&1 | tail -120 || FAILED=1
  wait; python3 "$HERE/rows_plugin.py" "$OUT/tests.jsonl"; }
kernels() { say kernels; within ${KERNELS:-120} python3 "$HERE/device_kernels.py" --seconds $((${KERNELS:-120} - 12)); }
passes() { say passes; within ${PASSES:-150} python3 "$HERE/device_passes.py" --seconds $((${PASSES:-150} - 12)); }
sanitize() {
  say sanitize
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 within 70 compute-sanitizer --tool memcheck --error-exitcode 9 --print-limit 5 \
    python3 "$HERE/small_calls.py" > "$OUT/sanitize.txt" 2>&1; echo "memcheck: exit $?"; tail -4 "$OUT/sanitize.txt"; }
profile() {
  say profile
  within 45 ncu --clock-control none --launch-skip 3 --launch-count 1 -k regex:tree_attention_kernel --section SpeedOfLight --section WarpStateStats \
    --section LaunchStats --section Occupancy python3 "$HERE/one_kernel.py" attention > "$OUT/profile.txt" 2>&1; echo "ncu: exit $?"
  within 40 ncu --clock-control none --launch-skip 3 --launch-count 1 -k regex:linear_logprob_kernel --section SpeedOfLight --section WarpStateStats \
    --section LaunchStats --section Occupancy python3 "$HERE/one_kernel.py" logprob >> "$OUT/profile.txt" 2>&1; tail -30 "$OUT/profile.txt"; }
tune() { say tune; within 90 python3 "$HERE/device_kernels.py" --tune --seconds 75; }
recurrent() { say recurrent; within 60 python3 "$HERE/device_kernels.py" --recurrent --seconds 50; }
[ $# -gt 0 ] || set -- smoke tests kernels passes sanitize profile tune recurrent
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader
for stage in "$@"; do $stage; done
say "done"; python3 "$HERE/device_summary.py" "$OUT"
exit $FAILED
