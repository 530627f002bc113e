#!/bin/bash
# resume.sh PROGRAM SCRATCH: stopping and going on, on the same grid and on others.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

sed -i -e 's/^steps = 6/steps = 8/' -e 's/^num_layers = 2/num_layers = 4\ndropout = 0.1/' "$base"
printf '[checkpoint]\nevery_steps = 4\n' >>"$base"

# in_folder FOLDER: the arguments that put a run there.
in_folder() { echo "--run.dir=$1 --log.metrics=$1/metrics.jsonl"; }

# checkpoint_of FOLDER STEP: the path of a committed checkpoint.
checkpoint_of() {
  find "$1/checkpoints" -maxdepth 1 -name "step-*" ! -name '*.tmp*' | while read -r path; do
    number=$(basename "$path" | sed 's/^step-0*//; s/[^0-9].*//')
    if [ "${number:-0}" = "$2" ]; then echo "$path"; fi
  done
}

# stopped_at STRAIGHT STOPPED STEP LATER: a copy of a run's checkpoints as it was before it saved step LATER.
stopped_at() {
  mkdir -p "$2"
  cp -a "$1/checkpoints" "$2/"
  rm -rf "$(checkpoint_of "$2" "$4")"
  local name
  name=$(basename "$(checkpoint_of "$2" "$3")")
  if [ -L "$2/checkpoints/latest" ]; then
    ln -sfn "$name" "$2/checkpoints/latest"
  else
    printf '%s\n' "$name" >"$2/checkpoints/latest"
  fi
}

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

# close_to FIRST-STEP EXPECTED FOUND KEY: equal within 2e-4, relative, for as many steps.
close_to() {
  column "$2" "$4" | awk -v first="$1" '$1 >= first' >expected.txt
  column "$3" "$4" | awk -v first="$1" '$1 >= first' >found.txt
  local verdict
  verdict=$(paste expected.txt found.txt | awk '
    { difference = $2 - $4; if (difference < 0) difference = -difference
      if ($1 != $3 || NF != 4 || !(difference <= 2e-4 * ($2 < 0 ? -$2 : $2))) print "step " $1 ": " $2 " and " $4
      ++lines }
    END { if (lines == 0) print "nothing to compare" }')
  if [ -z "$verdict" ]; then ok "$4 agrees"; else fail "$4 agrees" "$verdict"; fi
}

# --- case-01, case-03: the same grid ---
for grid in "2 1 1" "1 2 2"; do
  read -r data tensor pipeline <<<"$grid"
  num_ranks=$((data * tensor * pipeline))
  axes="--parallel.tensor=$tensor --parallel.pipeline=$pipeline"
  straight=straight_$num_ranks
  stopped=stopped_$num_ranks
  title="straight on $data x $tensor x $pipeline"
  # shellcheck disable=SC2046,SC2086
  launch $num_ranks "$base" $axes $(in_folder $straight)
  expect_exit 0
  title="case-01, case-03: stopped at step 4 and resumed on $data x $tensor x $pipeline"
  stopped_at $straight $stopped 4 8
  # shellcheck disable=SC2046,SC2086
  launch $num_ranks "$base" $axes $(in_folder $stopped) --checkpoint.resume=latest
  expect_exit 0
  expect_once '^resume .*step 4, sample 32'
  expect_no_text 'fingerprint differs'
  for key in loss grad_norm learning_rate tokens eval_loss bits_per_byte; do
    same 5 $straight/metrics.jsonl $stopped/metrics.jsonl $key
  done
  check "the metrics begin at step 5" [ "$(head -n 1 $stopped/metrics.jsonl | grep -c '"step": 5,')" = 1 ]
done

title="case-01: 4 steps, then train.steps = 8, against 8 steps"
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder eight) --optimizer.schedule=constant --checkpoint.at_end=false
expect_exit 0
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder four) --optimizer.schedule=constant --train.steps=4
expect_exit 0
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder four) --optimizer.schedule=constant --checkpoint.resume=latest
expect_exit 0
expect_once 'train.steps: 8, .*checkpoint was made with 4'
same 1 eight/metrics.jsonl four/metrics.jsonl loss
same 1 eight/metrics.jsonl four/metrics.jsonl grad_norm
same 8 eight/metrics.jsonl four/metrics.jsonl eval_loss

title="nothing left to train"
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder four) --optimizer.schedule=constant --checkpoint.resume=latest
expect_exit 0
expect_once 'nothing to train: the checkpoint is at step 8'
expect_no_text '^step '

# --- case-04: other grids ---
title="straight on 2 x 2 x 2"
# shellcheck disable=SC2046
launch 8 "$base" --parallel.tensor=2 --parallel.pipeline=2 $(in_folder eight_ranks)
expect_exit 0
from=$(checkpoint_of eight_ranks 4)
for grid in "1 1 1" "4 1 1" "1 2 2" "1 1 4"; do
  read -r data tensor pipeline <<<"$grid"
  title="case-04: saved on 2 x 2 x 2, resumed on $data x $tensor x $pipeline"
  # shellcheck disable=SC2046
  launch $((data * tensor * pipeline)) "$base" --parallel.tensor="$tensor" --parallel.pipeline="$pipeline" \
    $(in_folder "on_$data$tensor$pipeline") --checkpoint.resume="$from"
  expect_exit 0
  expect_once 'fingerprint differs'
  for key in loss grad_norm eval_loss; do
    close_to 5 eight_ranks/metrics.jsonl "on_$data$tensor$pipeline/metrics.jsonl" $key
  done
done

# --- case-05: what a killed save leaves ---
title="case-05: half checkpoints of a killed save"
stopped_at straight_2 killed 4 8
for name in step-00000099.tmp step-99.tmp "$(basename "$(checkpoint_of straight_2 8)").tmp"; do
  mkdir -p "killed/checkpoints/$name"
  echo half >"killed/checkpoints/$name/tensors.h5"
done
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder killed) --checkpoint.resume=latest
expect_exit 0
expect_once '^resume .*step 4,'
check "the next save is committed" [ -n "$(checkpoint_of killed 8)" ]
check "nothing half is left" [ -z "$(find killed/checkpoints -maxdepth 1 -name '*.tmp*')" ]
same 5 straight_2/metrics.jsonl killed/metrics.jsonl loss

# --- case-08: what the new configuration says counts ---
title="case-08: a new learning rate"
stopped_at straight_2 new_rate 4 8
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder new_rate) --checkpoint.resume=latest --optimizer.learning_rate=1e-4 \
  --optimizer.schedule=constant --train.steps=6
expect_exit 0
expect_once 'optimizer.learning_rate: 0.0001, .*0.004'
expect_once 'optimizer.schedule: constant, .*cosine'
expect_once 'train.steps: 6, .*8'
check "step 5 used it" [ "$(field new_rate/metrics.jsonl 5 learning_rate)" = 0.0001 ]

title="latest, and no checkpoint yet"
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder fresh) --checkpoint.resume=latest --train.steps=4
expect_exit 0
expect_once '^resume +no checkpoint in fresh/checkpoints yet: starting from step 0'
expect_text '^step +4/4'

finish
