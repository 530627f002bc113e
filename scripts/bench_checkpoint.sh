#!/usr/bin/env bash
# scripts/bench_checkpoint.sh BUILD [FOLDER] [MEGABYTES]: speed of checkpoints, as tables for docs/benchmarks.md. FOLDER
# lies on the file system to measure (default: a folder in the current one); 1 GB by default.
set -euo pipefail
build=$(realpath "$1")
folder=${2:-bench-checkpoint}
megabytes=${3:-1000}
source_dir=$(realpath "$(dirname "$0")/..")
# shellcheck source=scripts/env.sh
. "$source_dir/scripts/env.sh"
mkdir -p "$folder"
cd "$folder"
trap 'rm -rf checkpoints run_sync run_async text.txt state.ini bench.log files' EXIT

echo "| ranks | files | write GB/s | plain write | ratio | read GB/s | plain read | ratio | cached read GB/s | plain | ratio |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
for ranks in 1 2 8; do
  mpirun -np $ranks "$build/tests/bench_checkpoint" files "$megabytes"
done

# A model of 1 GB of weights and moments on one rank with one thread; another core is free for the writer.
awk 'BEGIN { for (i = 0; i < 40000; ++i) printf "a potato is number %d\n", (i * 7919) % 10007 }' >text.txt
cat >state.ini <<END
[run]
threads = 1
[data]
path = text.txt
validation_fraction = 0
[model]
num_layers = 12
hidden_size = 768
num_heads = 12
[train]
steps = 60
sequence_length = 32
global_batch_size = 1
micro_batch_size = 1
[sample]
tokens = 0
[checkpoint]
every_steps = 25
at_end = false
END
for way in sync async; do
  is_async=$([ $way = async ] && echo true || echo false)
  mpirun -np 1 --bind-to none "$build/potatochat" state.ini --run.dir=run_$way --log.metrics=run_$way/metrics.jsonl \
    --checkpoint.async="$is_async" >bench_$way.log
done
# Held up: the call itself, and by how much the next step, and the next six, are longer than the usual one.
awk '
  FILENAME ~ /log$/ {
    if (match($0, /held up for [0-9.e-]+ ms/)) call += substr($0, RSTART + 12, RLENGTH - 15) / 2
    if (match($0, /committed in [0-9.e-]+ s/)) committed[FILENAME] += 1000 * substr($0, RSTART + 13, RLENGTH - 15) / 2
    next
  }
  match($0, /"step": [0-9]+/) {
    step = substr($0, RSTART + 8, RLENGTH - 8) + 0
    match($0, /"step_ms": [0-9.e+-]+/)
    ms[step] = substr($0, RSTART + 11, RLENGTH - 11) + 0
  }
  END {
    for (step = 10; step <= 24; ++step) usual[++n] = ms[step]
    for (i = 1; i <= n; ++i) for (j = i + 1; j <= n; ++j) if (usual[j] < usual[i]) { t = usual[i]; usual[i] = usual[j]; usual[j] = t }
    middle = usual[int((n + 1) / 2)]
    for (save = 25; save <= 50; save += 25) {
      first += (ms[save + 1] - middle) / 2
      for (step = save + 1; step <= save + 6; ++step) six += (ms[step] - middle) / 2
    }
    sync = committed["bench_sync.log"]
    printf "\nState of 1 GB, one rank, usual step %.0f ms. A synchronous save holds training up for %.0f ms. An asynchronous one, committed after %.0f ms: %.2f ms in the call, %.1f ms in the step that follows (together %.1f %%), %.1f ms in the six that follow, which share memory and disk with the writer (%.1f %%).\n", middle, sync, committed["bench_async.log"], call, first, 100 * (call + first) / sync, six, 100 * (call + six) / sync
  }' bench_sync.log bench_async.log run_async/metrics.jsonl
rm -f bench_sync.log bench_async.log
