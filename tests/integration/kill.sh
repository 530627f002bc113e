#!/bin/bash
# kill.sh PROGRAM SCRATCH: case-05, ranks killed at random moments, half of them in a save; the next start goes on from the
# last committed checkpoint, and the end is bitwise that of an unbroken run. POTATO_KILLS: how many kills (default 6).
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

num_kills=${POTATO_KILLS:-6}
RANDOM=${POTATO_KILL_SEED:-7}
sed -i -e 's/^steps = 6/steps = 48/' -e 's/^tokens = 8/tokens = 0/' "$base"
printf '[checkpoint]\nevery_steps = 2\nkeep_last = 3\n' >>"$base"

# The ways in which runs are made; each has its unbroken run.
ranks_of=(2 4 2 4)
options_of=(
  "--zero.stage=0"
  "--parallel.tensor=2 --zero.stage=1 --checkpoint.async=true"
  "--zero.stage=3 --checkpoint.async=true"
  "--parallel.pipeline=2 --zero.stage=2 --checkpoint.files=2"
)
last_index() { printf '%s/checkpoints/step-%08d/index.h5\n' "$1" 48; }

for way in "${!ranks_of[@]}"; do
  title="unbroken run, ${options_of[$way]}"
  # shellcheck disable=SC2086
  launch "${ranks_of[$way]}" "$base" ${options_of[$way]} --run.dir="whole_$way" --log.metrics=
  expect_exit 0
done

num_in_save=0
for ((kill_number = 1; kill_number <= num_kills; ++kill_number)); do
  way=$((kill_number % ${#ranks_of[@]}))
  ranks=${ranks_of[$way]}
  folder=killed_$kill_number
  victim=$((RANDOM % ranks))
  title="case-05: kill $kill_number, rank $victim of $ranks, ${options_of[$way]}"
  rm -f pid.*
  # shellcheck disable=SC2016,SC2086
  timeout -k 10 "$timeout_s" mpirun -np "$ranks" bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$0" "$@"' \
    "$program" "$base" ${options_of[$way]} --run.dir="$folder" --log.metrics= --run.debug_slow_save_ms=15 \
    >"$output" 2>&1 </dev/null &
  launcher=$!
  if ((kill_number % 2 == 0)); then
    # In the first save after a random number of them.
    saves=$((RANDOM % 8))
    for ((i = 0; i < 2000; ++i)); do
      committed=$(grep -c 'committed in' "$output")
      if ((committed >= saves)) && compgen -G "$folder/checkpoints/step-*.tmp" >/dev/null; then break; fi
      kill -0 $launcher 2>/dev/null || break
      sleep 0.003
    done
    sleep "0.0$((RANDOM % 90 + 10))"
  else
    sleep "$((RANDOM % 2)).$((RANDOM % 900 + 100))"
  fi
  for ((i = 0; i < 1000; ++i)); do
    if [ -s "pid.$victim" ]; then break; fi
    sleep 0.01
  done
  if compgen -G "$folder/checkpoints/step-*.tmp" >/dev/null; then num_in_save=$((num_in_save + 1)); fi
  kill -KILL "$(cat "pid.$victim")" 2>/dev/null
  wait $launcher
  code=$?
  if [ $code -eq 0 ] || [ $code -eq 124 ]; then fail "the job ends, and not well" "exit code $code"; fi
  committed=$(sed -n 's/^checkpoint .*step-0*\([0-9]*\) committed.*/\1/p' "$output" | tail -n 1)
  # shellcheck disable=SC2086
  launch "$ranks" "$base" ${options_of[$way]} --run.dir="$folder" --log.metrics= --checkpoint.resume=latest
  if [ "$code" -ne 0 ]; then
    fail "the next start ends well" "exit code $code"
    continue
  fi
  resumed=$(sed -n 's/^resume .*: step \([0-9]*\), sample.*/\1/p' "$output")
  if [ "${resumed:-0}" -lt "${committed:-0}" ]; then
    fail "nothing committed is lost" "step $committed was committed, it went on from ${resumed:-0}"
  elif ! h5diff "$(last_index "whole_$way")" "$(last_index "$folder")" /model /model ||
    ! h5diff "$(last_index "whole_$way")" "$(last_index "$folder")" /optimizer /optimizer; then
    fail "the end is that of the unbroken run" "weights or moments differ"
  elif [ -n "$(find "$folder/checkpoints" -maxdepth 1 -name '*.tmp*')" ]; then
    fail "nothing half is left" "$(find "$folder/checkpoints" -maxdepth 1 -name '*.tmp*')"
  else
    ok "went on from step ${resumed:-0} (committed: ${committed:-none}), the end is bitwise the same"
  fi
  rm -rf "$folder"
done
title="kills"
echo "        $num_in_save of $num_kills kills met a save"
check "some kills met a save" [ "$num_in_save" -ge $((num_kills / 3)) ]

finish
