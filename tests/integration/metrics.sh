#!/bin/bash
# metrics.sh PROGRAM SCRATCH: what a run prints and writes.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

number='-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?'

# check_metrics FILE: 6 steps of 256 tokens with an evaluation after steps 2, 4 and 6.
check_metrics() {
  local file=$1 key line='' eval_line
  for key in loss grad_norm learning_rate step_ms tokens_per_s; do line="$line, \"$key\": $number"; done
  line="^\{\"step\": [0-9]+, \"tokens\": [0-9]+$line\}\$"
  eval_line="^\{\"step\": [0-9]+, \"eval_loss\": $number, \"bits_per_byte\": $number\}\$"
  check "6 lines of steps" [ "$(grep -Ec "$line" "$file")" = 6 ]
  check "3 lines of evaluations" [ "$(grep -Ec "$eval_line" "$file")" = 3 ]
  check "no other lines" [ "$(wc -l <"$file")" = 9 ]
  check "steps and their tokens" [ "$(column "$file" tokens | tr '\n' ';')" = \
    "1 256;2 512;3 768;4 1024;5 1280;6 1536;" ]
  check "evaluations after steps 2, 4, 6" [ "$(column "$file" eval_loss | cut -d ' ' -f 1 | tr '\n' ' ')" = "2 4 6 " ]
  check "the loss falls" awk -v first="$(field "$file" 1 loss)" -v last="$(field "$file" 6 loss)" \
    'BEGIN { exit !(first > 5 && first < 6.5 && last < first - 0.3) }'
  check "the norm is positive" awk -v norm="$(field "$file" 6 grad_norm)" 'BEGIN { exit !(norm > 0.01 && norm < 100) }'
  check "digits enough to be exact" grep -Eq '"loss": [0-9]\.[0-9]{14,16}[,}]' "$file"
  check "tokens_per_s is tokens / step_ms" awk -v ms="$(field "$file" 3 step_ms)" -v rate="$(field "$file" 3 tokens_per_s)" \
    'BEGIN { ratio = rate * ms / 256e3; exit !(ratio > 0.999 && ratio < 1.001) }'
  check "bits_per_byte is eval_loss / ln 2" awk -v loss="$(field "$file" 6 eval_loss)" \
    -v bits="$(field "$file" 6 bits_per_byte)" 'BEGIN { ratio = bits * log(2) / loss; exit !(ratio > 0.99 && ratio < 1.01) }'
}

for grid in "1 1 1" "1 2 2"; do
  read -r data tensor pipeline <<<"$grid"
  title="run on $data x $tensor x $pipeline"
  launch $((data * tensor * pipeline)) "$base" --parallel.tensor="$tensor" --parallel.pipeline="$pipeline" \
    --eval.every_steps=2 --log.wall_clock_breakdown=true --run.dir="run_$tensor" --log.metrics="run_$tensor/metrics.jsonl"
  expect_exit 0
  check_metrics "run_$tensor/metrics.jsonl"
  expect_once "^grid +data $data x tensor $tensor x pipeline $pipeline"
  expect_times 6 '^step +[1-6]/6 \| loss .*lr .*norm .*tokens/s .*ms/step .*ETA'
  expect_times 3 '^eval +[246] \| validation loss .*perplexity .*bits per byte'
  expect_times 6 'forward .*backward .*communication .*optimizer .*data .*bubble'
  expect_once '^checkpoint .* committed in'
  expect_once 'allocations by our code after the first step: 0 \(all ranks\)'
  check "sample.txt is written" [ -s "run_$tensor/sample.txt" ]
  expect_once 'sample, greedy'
done

title="a progress line every 4 steps, no metrics, no sample, no checkpoint"
launch 2 "$base" --log.steps_per_print=4 --log.metrics= --sample.tokens=0 --checkpoint.at_end=false --run.dir=quiet
expect_exit 0
expect_times 3 '^step ' # the first, the fourth, the last
expect_no_text 'sample,|^checkpoint|forward '
check "no sample" [ ! -e quiet/sample.txt ]
check "no checkpoint" [ -z "$(find quiet/checkpoints -name '*.h5')" ]

title="the same run again"
launch 2 "$base" --run.dir=again
cp run/metrics.jsonl first.jsonl
launch 2 "$base" --run.dir=again
expect_exit 0
for key in loss grad_norm eval_loss; do
  check "$key has the same digits" [ "$(column first.jsonl $key)" = "$(column run/metrics.jsonl $key)" ]
done
check "sequence of 6 losses" [ "$(column first.jsonl loss | wc -l)" = 6 ]

finish
