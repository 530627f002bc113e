#!/bin/bash
# resume.sh PROGRAM SCRATCH: stopping and going on, on the same grid and on others.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

sed -i -e 's/^steps = 6/steps = 8/' -e 's/^num_layers = 2/num_layers = 4\ndropout = 0.1/' "$base"
printf '[checkpoint]\nevery_steps = 4\n' >>"$base"

# in_folder FOLDER: the arguments that put a run there.
in_folder() { echo "--run.dir=$1 --log.metrics=$1/metrics.jsonl"; }

# checkpoint_of FOLDER STEP: the path of a committed checkpoint.
checkpoint_of() { printf '%s/checkpoints/step-%08d\n' "$1" "$2"; }

# stopped_at STRAIGHT STOPPED STEP LATER: a copy of a run's checkpoints as it was before it saved step LATER.
stopped_at() {
  mkdir -p "$2"
  cp -a "$1/checkpoints" "$2/"
  rm -r "$(checkpoint_of "$2" "$4")"
  basename "$(checkpoint_of "$2" "$3")" >"$2/checkpoints/latest"
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
  if command -v h5diff >/dev/null; then
    for group in model optimizer; do
      check "the last /$group is bitwise the same" \
        h5diff "$(checkpoint_of $straight 8)/index.h5" "$(checkpoint_of $stopped 8)/index.h5" /$group /$group
    done
  else
    skip "no h5diff (hdf5-tools) to compare weights with"
  fi
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
cp straight_2/metrics.jsonl killed/
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder killed) --checkpoint.resume=latest
expect_exit 0
expect_once '^resume .*step 4,'
check "the next save is committed" [ -s "$(checkpoint_of killed 8)/index.h5" ]
check "nothing half is left" [ -z "$(find killed/checkpoints -maxdepth 1 -name '*.tmp*')" ]
same 1 straight_2/metrics.jsonl killed/metrics.jsonl loss # each step once: what was after step 4 is gone
same 1 straight_2/metrics.jsonl killed/metrics.jsonl eval_loss

title="case-05: latest names a checkpoint that is gone"
stopped_at straight_2 gone 4 8
echo step-00000008 >gone/checkpoints/latest
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder gone) --checkpoint.resume=latest --train.steps=5
expect_exit 0
expect_once '^resume .*step 4,'

title="going on from an older checkpoint replaces the newer one of the same step"
cp -a straight_2 again
before=$(cksum <"$(checkpoint_of again 8)/manifest.json")
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder again) --checkpoint.resume="$(checkpoint_of again 4)" --optimizer.learning_rate=1e-5
expect_exit 0
expect_once '^step +5/8'
check "step 8 was saved anew" [ "$before" != "$(cksum <"$(checkpoint_of again 8)/manifest.json")" ]
check "latest is step 8" grep -q '^step-00000008$' again/checkpoints/latest
check "nothing half is left" [ -z "$(find again/checkpoints -maxdepth 1 -name '*.tmp*')" ]

# --- case-05: a real kill ---
title="case-05: rank 1 is killed while checkpoints are saved at every step"
# shellcheck disable=SC2016,SC2046
timeout -k 10 "$timeout_s" mpirun -np 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$0" "$@"' "$program" "$base" \
  $(in_folder shot) --train.steps=1000000 --checkpoint.every_steps=1 >"$output" 2>&1 </dev/null &
launcher=$!
for ((i = 0; i < 300; ++i)); do
  if [ -e "$(checkpoint_of shot 5)/index.h5" ] || ! kill -0 $launcher 2>/dev/null; then break; fi
  sleep 0.1
done
kill -KILL "$(cat pid.1)"
wait $launcher
code=$?
shown=no
if [ $code -ne 0 ] && [ $code -ne 124 ]; then ok "the job ends"; else fail "the job ends" "exit code $code"; fi
reached=$(sed 's/^step-0*//' shot/checkpoints/latest)
check "latest is step 5 or later" [ "${reached:-0}" -ge 5 ]
title="case-05: going on after the kill"
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder shot) --train.steps=$((reached + 1)) --checkpoint.resume=latest
expect_exit 0
expect_once "^resume .*step $reached,"
check "nothing half is left" [ -z "$(find shot/checkpoints -maxdepth 1 -name '*.tmp*')" ]
check "the next checkpoint is committed" grep -q "^step-0*$((reached + 1))\$" shot/checkpoints/latest

# --- case-08: what the new configuration says counts ---
title="case-08: a new learning rate"
stopped_at straight_2 new_rate 4 8
# shellcheck disable=SC2046
launch 2 "$base" $(in_folder new_rate) --checkpoint.resume=latest --optimizer.learning_rate=1e-4 \
  --optimizer.schedule=constant --train.steps=6
expect_exit 0
expect_once 'optimizer.learning_rate: (1e-04|0.0001), .*made with (4e-03|0.004)'
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
