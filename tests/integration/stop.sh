#!/bin/bash
# stop.sh PROGRAM SCRATCH: case-07, a run is asked to save or to end, by signals to any one rank, by files, by the clock;
# case-06, saves in the background.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

sed -i -e 's/^steps = 6/steps = 1000000/' -e 's/^tokens = 8/tokens = 0/' -e 's/^metrics = .*/metrics =/' \
  -e 's/^steps_per_print = 1/steps_per_print = 200/' "$base"

# start RANKS ARGUMENTS...: the program in the background; `launcher` is mpirun's process id, pid.N a rank's.
start() {
  local num_ranks=$1
  shift
  rm -rf run pid.*
  # shellcheck disable=SC2016
  timeout -k 10 "$timeout_s" mpirun -np "$num_ranks" bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$0" "$@"' \
    "$program" "$base" "$@" >"$output" 2>&1 </dev/null &
  launcher=$!
}

# until_output PATTERN: waits until a line matches.
until_output() {
  local i
  for ((i = 0; i < 400; ++i)); do
    if grep -Eqa -e "$1" "$output" || ! kill -0 $launcher 2>/dev/null; then return; fi
    sleep 0.05
  done
}

# ended: waits for the program; fills `code`.
ended() {
  wait $launcher
  code=$?
  shown=no
}

last_step() { sed 's/^step-0*//' run/checkpoints/latest; }

for signal in TERM INT; do
  title="case-07: SIG$signal to rank 2 of 4"
  start 4 --parallel.tensor=2
  until_output '^step +200/'
  kill -$signal "$(cat pid.2)"
  ended
  expect_exit 0
  expect_once "stopping +after step [0-9]+ of 1000000: SIG$signal on rank 2 \\(.*; exit code 0"
  expect_once "step-[0-9]+ committed"
  check "the checkpoint is of the last step" grep -q "after step $(last_step) of" "$output"
done

title="case-07: SIGUSR1 to rank 1 of 2, for job scripts that requeue"
start 2 --run.requeue_exit_code=99
until_output '^step +200/'
kill -USR1 "$(cat pid.1)"
ended
expect_exit 99
expect_once "stopping .*SIGUSR1 on rank 1 \\(.*; exit code 99"
reached=$(last_step)
title="going on after SIGUSR1"
launch 2 "$base" --checkpoint.resume=latest --train.steps=$((reached + 2))
expect_exit 0
expect_once "^resume .*step $reached,"

title="case-07: SIGUSR1 to mpirun, which passes it on"
start 2
until_output '^step +200/'
kill -USR1 "$(pgrep -P $launcher mpirun)"
ended
expect_exit 75
expect_once 'stopping .*SIGUSR1'

title="case-07: SIGTERM in an evaluation"
start 2 --train.steps=5 --train.global_batch_size=2 --train.micro_batch_size=1 --eval.final_batches=0 \
  --run.debug_stream_delay_us=30000
until_output 'step-00000005 committed'
sleep 0.3
kill -TERM "$(cat pid.0)"
ended
expect_exit 0
expect_once 'eval 5 was cut short after [0-9]+ of 128 batches'
expect_once 'stopping +after step 5 of 5: SIGTERM on rank 0'

title="case-07: SIGTERM in a save"
start 2 --run.debug_slow_save_ms=150 --checkpoint.every_steps=50
for ((i = 0; i < 400; ++i)); do
  if compgen -G 'run/checkpoints/step-*.tmp' >/dev/null; then break; fi
  sleep 0.02
done
kill -TERM "$(cat pid.1)"
ended
expect_exit 0
expect_once 'step-00000050 committed'
expect_once 'step-00000051 committed'
expect_once 'stopping +after step 51 of'

title="case-07: a signal to a run without checkpoints"
start 2 --checkpoint.at_end=false
until_output '^step +200/'
kill -TERM "$(cat pid.0)"
ended
expect_exit 0
expect_once 'checkpoint +none: checkpoint.at_end = false'
check "nothing was saved" [ ! -e run/checkpoints/latest ]

title="the files SAVE and STOP"
start 2
until_output '^step +200/'
touch run/SAVE
until_output 'committed'
expect_once 'step-[0-9]+ committed'
check "SAVE is gone" [ ! -e run/SAVE ]
check "the run goes on" kill -0 $launcher
touch run/STOP
ended
expect_exit 0
expect_once 'stopping .*the file run/STOP on rank 0'
expect_times 2 'step-[0-9]+ committed'
check "STOP is gone" [ ! -e run/STOP ]

title="every_minutes"
start 2 --checkpoint.every_minutes=0.01
until_output 'committed'
until_output '^step +1000/'
kill -TERM "$(cat pid.0)"
ended
expect_exit 0
check "saved by the clock" [ "$(grep -c committed "$output")" -ge 2 ]

title="case-06: saves in the background"
start 2 --checkpoint.async=true --checkpoint.every_steps=20 --train.steps=60 --run.debug_slow_save_ms=30
ended
expect_exit 0
for step in 20 40 60; do
  expect_once "checkpoint +step $step queued, training was held up for [0-9.e-]+ ms"
  expect_once "step-000000$step committed in"
done
expect_text 'waiting for the one before'
check "queued comes before committed" awk '/step 20 queued/ { queued = NR } /step-00000020 committed/ { exit !(queued && queued < NR) }' "$output"

title="a save fails while the run goes on"
start 2 --checkpoint.every_steps=400 --train.steps=1300 --checkpoint.async=true
until_output 'step-00000400 committed'
mv run/checkpoints run/moved
echo "no folder" >run/checkpoints
ended
expect_exit 1
expect_text 'checkpoint +NOT saved, training goes on: .*run/checkpoints' '^step +1300/1300'
check "what was committed is still there" [ -e run/moved/step-00000400/manifest.json ]

title="case-30: a save in the background and a full disk"
mkdir -p disk
if mount -t tmpfs -o size=1900k tmpfs disk 2>/dev/null; then
  launch 2 "$base" --run.dir=disk/run --checkpoint.async=true --checkpoint.every_steps=1 --train.steps=8
  expect_failure
  expect_text 'NOT saved, training goes on: .*too full: [0-9]+ bytes needed, [0-9]+ free' '^step +8/8'
  check "no half checkpoint is left" [ -z "$(find disk/run/checkpoints -maxdepth 1 -name '*.tmp*')" ]
  kept=$(find disk/run/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
  launch 2 "$base" --checkpoint.resume="$kept" --train.steps=9 --run.dir=after_full_disk
  expect_exit 0
  umount disk
else
  skip "mount is not allowed here"
fi

finish
