# shellcheck shell=bash
# What the integration tests share. Sourced as `. common.sh PROGRAM SCRATCH`; SCRATCH is made, and removed at the end.
#
# A test sets `title`, calls `launch` (or `launch_alone`), and then expectations on what came out. Each expectation
# prints one line, "ok ..." or "FAILED ...: why" with the program's output, and `finish` exits with the verdict.
set -u

if [ $# -ne 2 ]; then
  echo "usage: $0 PROGRAM SCRATCH-FOLDER" >&2
  exit 2
fi
program=$(realpath "$1")
scratch=$2
if [ -e "$scratch" ] && [ ! -e "$scratch/.potato-scratch" ]; then
  echo "$scratch exists and is no scratch folder of these tests" >&2
  exit 2
fi
umount "$scratch"/disk 2>/dev/null
rm -rf "$scratch"
mkdir -p "$scratch" || exit 2
touch "$scratch/.potato-scratch"
scratch=$(realpath "$scratch")
trap 'umount "$scratch/disk" 2>/dev/null; rm -rf "$scratch"' EXIT

# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
unset MAKEFLAGS OMP_NUM_THREADS OMP_WAIT_POLICY
cd "$scratch" || exit 2

timeout_s=60
output=$scratch/output
base=$scratch/base.ini
title=""
num_failed=0
shown=no # whether the present output is printed already

# About 200 KB of words with enough order in them that a loss falls within a few steps.
awk 'BEGIN {
  split("the a potato farmer field grows cooks eats old green sweet soup in on with and", word)
  for (state = 1; length_bytes < 200000; length_bytes += length(line) + 1) {
    line = ""
    for (i = 0; i < 12; ++i) { state = (state * 16807) % 2147483647; line = line word[state % 16 + 1] " " }
    print line
  }
}' >"$scratch/text.txt"

# A run of one or two seconds. Everything it writes lies in ./run.
cat >"$base" <<END
[run]
threads = 1
[data]
path = $scratch/text.txt
cache_dir = $scratch/cache
validation_fraction = 0.05
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
[train]
steps = 6
sequence_length = 32
global_batch_size = 8
micro_batch_size = 2
[optimizer]
learning_rate = 4e-3
[log]
steps_per_print = 1
metrics = run/metrics.jsonl
[eval]
batches = 1
final_batches = 2
[sample]
tokens = 8
END

# launch RANKS ARGUMENTS...: the program under mpirun; fills `output` and `code` (124: it hung and was ended).
launch() {
  local num_ranks=$1
  shift
  timeout -k 10 "$timeout_s" mpirun -np "$num_ranks" "$program" "$@" >"$output" 2>&1 </dev/null
  code=$?
  shown=no
}

# launch_alone ARGUMENTS...: the program without a launcher.
launch_alone() {
  timeout -k 10 "$timeout_s" "$program" "$@" >"$output" 2>&1 </dev/null
  code=$?
  shown=no
}

ok() { echo "ok      $title: $1"; }

# fail WHAT WHY: the program's output follows.
fail() {
  num_failed=$((num_failed + 1))
  echo "FAILED  $title: $1: $2"
  if [ "$shown" = no ]; then sed -n '1,60{s/^/        | /;p}' "$output" 2>/dev/null; fi
  shown=yes
}

skip() { echo "SKIPPED $title: $1"; }

# check WHAT COMMAND...: the command must succeed.
check() {
  local what=$1
  shift
  if "$@"; then ok "$what"; else fail "$what" "\`$*\` is false"; fi
}

expect_exit() {
  if [ "$code" -eq "$1" ]; then
    ok "exit code $1"
  elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    fail "exit code $1" "it hung and was ended after $timeout_s s"
  else
    fail "exit code $1" "it is $code"
  fi
}

# A failure, but no hang and no signal.
expect_failure() {
  if [ "$code" -gt 0 ] && [ "$code" -lt 124 ]; then ok "exit code $code"; else fail "a failing exit code" "it is $code"; fi
}

# expect_text PATTERN...: each extended regular expression is in the output.
expect_text() {
  local pattern
  for pattern; do
    if grep -Eqa -e "$pattern" "$output"; then ok "says '$pattern'"; else fail "says '$pattern'" "it does not"; fi
  done
}

expect_no_text() {
  if grep -Eqa -e "$1" "$output"; then fail "does not say '$1'" "it does"; else ok "does not say '$1'"; fi
}

# expect_times COUNT PATTERN: so many lines match.
expect_times() {
  local found
  found=$(grep -Eca -e "$2" "$output")
  if [ "$found" -eq "$1" ]; then ok "says '$2' $1 time(s)"; else fail "says '$2' $1 time(s)" "$found line(s) do"; fi
}

# expect_once PATTERN: one rank says it, not all.
expect_once() { expect_times 1 "$1"; }

# mistake PATTERN...: what a user's mistake must look like: exit code 2, each pattern in one line, no training.
mistake() {
  local pattern
  expect_exit 2
  for pattern; do expect_once "$pattern"; done
  expect_no_text '^step '
}

# field FILE STEP KEY: the text of a number in the metrics file.
field() { sed -n "s/^{\"step\": $2,.*\"$3\": \([^,}]*\)[,}].*/\1/p" "$1"; }

# column FILE KEY: that key of all lines that have it, with the step.
column() { sed -n "s/^{\"step\": \([0-9]*\),.*\"$2\": \([^,}]*\)[,}].*/\1 \2/p" "$1"; }

finish() {
  if [ "$num_failed" -gt 0 ]; then
    echo "$num_failed check(s) failed"
    exit 1
  fi
  echo "all checks passed"
  exit 0
}
