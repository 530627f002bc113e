#!/bin/bash
# hang.sh PROGRAM SCRATCH: case-26, case-27: runs that hang end by themselves and name the rank that holds them up.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

sed -i -e 's/^steps = 6/steps = 1000000/' -e 's/^tokens = 8/tokens = 0/' -e 's/^metrics = .*/metrics =/' \
  -e 's/^steps_per_print = 1/steps_per_print = 100/' "$base"
printf '[comm]\ntimeout_s = 4\n[parallel]\ntensor = 2\npipeline = 2\n[checkpoint]\nat_end = false\n' >>"$base"
sed -i 's/^threads = 1/threads = 1\nabort_timeout_s = 10/' "$base"

# ended_within SECONDS: of the last launch.
ended_within() {
  local took=$((SECONDS - began))
  if [ $took -le "$1" ]; then ok "ended after $took s"; else fail "ended within $1 s" "it took $took s"; fi
}

# nothing_left: no process of the run is alive.
nothing_left() {
  local file pid i
  for file in run/status/rank-?????; do
    pid=$(head -c 128 "$file" | tr -d '\0' | sed -n 's/^pid \([0-9]*\) .*/\1/p')
    for ((i = 0; i < 50; ++i)); do # mpirun leaves before the last of those that it kills
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    if kill -0 "$pid" 2>/dev/null; then fail "no process is left" "process $pid is"; return; fi
  done
  ok "no process is left"
}

expect_report() {
  expect_failure
  ended_within 25
  expect_once '^potatochat: hang: nothing has moved for 4 s'
  expect_text "$1"
  expect_times 8 '^ +[0-7]  .* (alive|STOPPED|GONE) '
  nothing_left
}

title="case-26: rank 5 of 8 is stopped from outside"
rm -rf run
timeout -k 10 "$timeout_s" mpirun -np 8 "$program" "$base" >"$output" 2>&1 </dev/null &
launcher=$!
for ((i = 0; i < 200; ++i)); do
  if grep -q '^step  *100/' "$output"; then break; fi
  sleep 0.1
done
kill -STOP "$(head -c 128 run/status/rank-00005 | tr -d '\0' | sed -n 's/^pid \([0-9]*\) .*/\1/p')"
began=$SECONDS
wait $launcher
code=$?
shown=no
expect_report 'hang: .* rank 5 on .* is stopped: step [0-9]+'
check "the waiting ranks' stacks name MPI" grep -lq MPI run/status/rank-00004.stack

title="case-26: rank 3 stops itself in step 20"
began=$SECONDS
launch 8 "$base" --run.debug_fault=3:20:stop
expect_report 'hang: .* rank 3 on .* is stopped: step 20'

title="case-26: rank 6 sleeps while it loads data"
began=$SECONDS
launch 8 "$base" --run.debug_fault=6:20:data_sleep
expect_report 'hang: .* rank 6 on .* does not come: step 20, main thread loading data'

title="case-26: rank 1 sits in a kernel"
began=$SECONDS
launch 8 "$base" --run.debug_fault=1:20:kernel_sleep
expect_report 'hang: .* rank 1 on .* does not come: step 20, main thread waiting for its streams'

title="case-26: rank 2 leaves out a collective"
began=$SECONDS
launch 8 "$base" --run.debug_fault=2:20:skip_collective
expect_report 'hang: .* rank 2 on .* is waited for: step 21'

title="case-26: with comm.check too, the rank that leaves out a collective is named"
began=$SECONDS
launch 8 "$base" --run.debug_fault=2:20:skip_collective --comm.check=true
expect_report 'hang: .* rank 2 on .* is waited for: step 21'

title="comm.check changes nothing"
launch 8 "$base" --train.steps=3
expect_exit 0
grep '^step ' "$output" | sed 's/ | *[0-9]* tokens.*//' >without.txt
launch 8 "$base" --train.steps=3 --comm.check=true
expect_exit 0
grep '^step ' "$output" | sed 's/ | *[0-9]* tokens.*//' >with.txt
check "the same losses" cmp -s without.txt with.txt

title="NCCL_TIMEOUT of the environment"
sed -i 's/^timeout_s = 4//' "$base"
began=$SECONDS
NCCL_TIMEOUT=3 launch 8 "$base" --run.debug_fault=1:20:data_sleep
expect_failure
ended_within 25
expect_text 'nothing has moved for 3 s' 'watchdog .*3 s.*NCCL_TIMEOUT'
NCCL_TIMEOUT=soon launch 2 "$base"
mistake 'NCCL_TIMEOUT = soon of the environment is no number of seconds'

title="case-27: an error on one rank ends all"
began=$SECONDS
launch 8 "$base" --run.debug_fault=4:20:nan --train.on_nonfinite=stop
expect_failure
ended_within 15
expect_text 'step 20: loss .*not finite; the first tensor of backward whose gradient is not finite is [a-z_.0-9]+'

title="train.on_nonfinite = skip"
launch 8 "$base" --run.debug_fault=4:20:nan --train.on_nonfinite=skip --train.steps=30
expect_exit 0
expect_once '^step 20 was skipped: loss [0-9.]+, gradient norm (-?nan|inf); the first tensor of backward .* is [a-z_.0-9]+'
expect_text '^step +30/30'

title="a straggler is named"
launch 8 "$base" --run.debug_fault=6:2:slow --train.steps=12 --log.steps_per_print=5
expect_exit 0
expect_text 'straggler +rank 6 on .*: [0-9.]+ ms a step, [0-9.]+ times the median'

finish
