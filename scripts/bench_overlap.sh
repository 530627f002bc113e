#!/usr/bin/env bash
# What zero.overlap_comm gains: the same training on CPU data ranks with a link between them that is slowed to a given
# rate (run.debug_link_gb_per_s; the ranks sleep while it is busy), with overlap and without, in turns, at every ZeRO
# stage. Prints ms a step (the least of ROUNDS) and the ratio.
#   scripts/bench_overlap.sh
# Variables: RANKS (2), GB_PER_S (0.05), STEPS a run (6), ROUNDS (2), BUILD (build).
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=${RANKS:-2} rate=${GB_PER_S:-0.05} steps=${STEPS:-6} rounds=${ROUNDS:-2}
program=${BUILD:-build}/potatochat
. scripts/env.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 2000000 /dev/zero | tr '\0' 'x' > "$work/text.txt"

# ms_per_step STAGE OVERLAP: the least of the steps after the first.
ms_per_step() {
  local metrics=$work/metrics.jsonl
  mpirun -np "$ranks" "$program" inputs/config.ini --run.device=cpu --run.threads=1 --run.dir="$work/run" \
    --data.path="$work/text.txt" --parallel.tensor=1 --parallel.pipeline=1 --model.hidden_size=256 --model.num_layers=6 \
    --train.global_batch_size=$((4 * ranks)) --train.micro_batch_size=4 --train.steps="$steps" --optimizer.warmup_steps=1 \
    --zero.stage="$1" --zero.overlap_comm="$2" ${3:-} --run.debug_link_gb_per_s="$rate" --checkpoint.every_steps=0 \
    --checkpoint.at_end=false --eval.every_steps=0 --eval.final_batches=1 --sample.tokens=0 --log.metrics="$metrics" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  sed -n 's/.*"step": \([0-9]*\),.*"step_ms": \([0-9.]*\),.*/\1 \2/p' "$metrics" |
    awk '$1 > 1 && (least == "" || $2 < least) { least = $2 } END { print least }'
}

echo "$ranks CPU ranks, 1 thread each, data axis at $rate GB/s: ms a step"
printf '%-6s  %10s  %10s  %6s\n' stage "no overlap" overlap ratio
for stage in 0 1 2 3; do
  bucket=
  [ "$stage" -eq 3 ] || bucket=--zero.reduce_bucket_size=800000
  with='' without=''
  for _ in $(seq "$rounds"); do
    without="$without $(ms_per_step "$stage" false $bucket)"
    with="$with $(ms_per_step "$stage" true $bucket)"
  done
  echo "$stage|$without|$with" | awk -F'|' '
    function least(text,   parts, n, i, best) {
      n = split(text, parts, " "); best = parts[1]
      for (i = 2; i <= n; ++i) if (parts[i] + 0 < best + 0) best = parts[i]
      return best
    }
    { without = least($2); with = least($3); printf "%-6s  %10.1f  %10.1f  %6.2f\n", $1, without, with, with / without }'
done
