#!/bin/bash
# zero.sh PROGRAM SCRATCH: ZeRO, offload and loss scaling as a user meets them.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

printf '[checkpoint]\nevery_steps = 4\n' >>"$base"

# in_folder FOLDER: the arguments that put a run there.
in_folder() { echo "--run.dir=$1 --log.metrics=$1/metrics.jsonl"; }

# same FIRST-STEP EXPECTED FOUND KEY: that key has the same digits in both metrics files, and is there.
same() {
  column "$2" "$4" | awk -v first="$1" '$1 >= first' >expected.txt
  column "$3" "$4" | awk -v first="$1" '$1 >= first' >found.txt
  if [ -s expected.txt ] && cmp -s expected.txt found.txt; then
    ok "$4 has the same digits"
  else
    fail "$4 has the same digits" "$(diff expected.txt found.txt | head -n 6 | tr '\n' ';')"
  fi
}

# --- case-01, case-15: an overflow in fp16, stopped and resumed after it ---
fp16="--precision.dtype=fp16 --precision.hysteresis=1 --precision.loss_scale_window=3 --run.debug_overflow_step=3"
for stage in 1 2; do
  title="case-15: an overflow at step 3, fp16, stage $stage"
  # shellcheck disable=SC2046,SC2086
  launch 4 "$base" $fp16 --zero.stage=$stage --parallel.tensor=2 $(in_folder fp16_$stage)
  expect_exit 0
  expect_once '^zero +stage '"$stage"': .*are split over 2 data rank'
  expect_once '^step 3 was skipped: gradients overflowed with loss scale 65536; it is now 32768'
  check "the schedule stood still" [ "$(field fp16_$stage/metrics.jsonl 3 learning_rate)" = \
    "$(field fp16_$stage/metrics.jsonl 4 learning_rate)" ]
  title="case-15: the same, resumed from step 4"
  mkdir -p resumed_$stage
  cp -a fp16_$stage/checkpoints resumed_$stage/
  rm -r resumed_$stage/checkpoints/step-00000006
  echo step-00000004 >resumed_$stage/checkpoints/latest
  # shellcheck disable=SC2046,SC2086
  launch 4 "$base" $fp16 --zero.stage=$stage --parallel.tensor=2 $(in_folder resumed_$stage) --checkpoint.resume=latest
  expect_exit 0
  for key in loss grad_norm learning_rate eval_loss; do
    same 5 fp16_$stage/metrics.jsonl resumed_$stage/metrics.jsonl $key
  done
done

title="case-15: a loss scale that never fits ends the run"
# shellcheck disable=SC2046
launch 2 "$base" --precision.dtype=fp16 --precision.initial_scale_power=60 --precision.consecutive_skips_limit=3 \
  --zero.stage=2 $(in_folder never)
expect_failure
expect_times 3 '^step [0-9]+ was skipped'
expect_text '3 steps in a row were skipped; the first tensor of backward whose gradient is not finite is [a-z0-9_.]+;'

# --- every stage through the program, in 16 bits; a checkpoint goes on at another stage, without offload ---
title="stage 3 with everything offloaded"
# shellcheck disable=SC2046
launch 2 "$base" --precision.dtype=bf16 --zero.stage=3 --zero.offload_optimizer=cpu --zero.offload_param=cpu \
  $(in_folder stage3)
expect_exit 0
expect_once 'lie and are updated in host memory; parameters lie in host memory'
expect_once '^  offloaded +[0-9.]+ MB'
expect_text 'allocations by our code after the first step: 0'
title="the same at stage 0, from its checkpoint of step 4"
mkdir -p stage0
cp -a stage3/checkpoints stage0/
# shellcheck disable=SC2046
launch 2 "$base" --precision.dtype=bf16 --checkpoint.resume=stage3/checkpoints/step-00000004 $(in_folder stage0)
expect_exit 0
expect_once 'zero.stage: 0, .*checkpoint was made with 3'
expect_once 'fingerprint differs'
check "losses agree within bf16's rounding" awk -v a="$(field stage3/metrics.jsonl 6 loss)" \
  -v b="$(field stage0/metrics.jsonl 6 loss)" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < (2e-3 * a) ^ 2) }'

title="case-25: less host memory than the run needs"
launch 2 "$base" --run.host_memory_bytes=1000000
mistake 'host .*: 2 rank.s. need .* of its memory, 1.00 MB are available .cgroup limit .*MemTotal .*run.host_memory_bytes'

finish
