#!/bin/bash
# bad_input.sh PROGRAM SCRATCH: mistakes of users, one run each: a clear message, said once, exit code 2, no hang, and
# nothing that was there is lost.
# shellcheck source=tests/integration/common.sh
. "$(dirname "$0")/common.sh"

# --- command line and configuration file ---
title="no arguments"
launch_alone
mistake 'no configuration is given'
expect_text 'usage: potatochat'

title="configuration file that does not exist"
launch 2 nowhere.ini
mistake 'nowhere.ini.*No such file'

title="configuration that is a folder"
mkdir -p folder.ini
launch_alone folder.ini
mistake 'folder.ini is a folder'

title="line that is no INI"
printf '[train]\nsteps 6\n' >broken.ini
launch_alone broken.ini
mistake 'broken.ini'

title="case-17: unknown key in the file"
{ cat "$base"; printf '[optimizer]\ngradient_clipp1ng = 1\n'; } >misspelt.ini
launch 2 misspelt.ini
mistake "misspelt.ini:$(wc -l <misspelt.ini): .*optimizer.gradient_clipp1ng.*did you mean optimizer.gradient_clipping"

title="case-17: unknown key on the command line"
launch_alone "$base" --train.stpes=3
mistake 'command line: .*train.stpes.*did you mean train.steps'

title="two mistakes at once"
launch_alone "$base" --train.steps=0 --model.dropout=1.5 --run.sead=3
mistake 'train.steps = 0' 'model.dropout = 1.5' 'run.sead = 3'

title="out-of-range values"
for setting in train.steps=-1 train.steps=1e3 train.micro_batch_size=99999999999999999999 optimizer.learning_rate=0 \
  optimizer.learning_rate=nan optimizer.beta2=1 data.validation_fraction=0.7 parallel.schedule=2f2b precision.dtype=fp8 \
  parallel.sequence=yes optimizer.weight_decay=-0.1 log.steps_per_print=0; do
  title="out of range: $setting"
  launch_alone "$base" "--$setting"
  mistake "command line: ${setting%%=*} = ${setting#*=} is not valid: .* is needed"
done

title="a key that was renamed, and one of DeepSpeed's"
launch_alone "$base" --parallel.bucket_size=1000 --fp16.loss_scale=0
mistake 'unknown key parallel.bucket_size = 1000; it is zero.reduce_bucket_size here' 'fp16.loss_scale = 0; loss scaling is in \[precision\]'

title="ZeRO stage that does not exist"
launch_alone "$base" --zero.stage=4
mistake 'command line: zero.stage = 4 is not valid: integer in \[0, 3\] is needed'

title="keys without effect"
launch 2 "$base" --zero.stage=1 --zero.offload_param=cpu --zero.allgather_bucket_size=1000 --precision.loss_scale=128
mistake 'zero.offload_param = cpu needs zero.stage = 3 \(is 1\)' 'zero.allgather_bucket_size = 1000 has no effect with zero.stage = 1' \
  'precision.loss_scale = 128 has no effect with precision.dtype = fp32: only fp16'

title="key without a value"
launch_alone "$base" --train.steps
mistake 'train.steps needs a value'

# --- the device ---
title="a GPU where none is visible"
CUDA_VISIBLE_DEVICES='' launch_alone "$base" --run.device=cuda
mistake 'run.device = cuda: .*use run.device = cpu'

title="what only a GPU does, on the CPU"
launch 2 "$base" --run.device=cpu --precision.dtype=tf32 --kernels.attention=cudnn
mistake 'precision.dtype = tf32 .*choose fp32' 'kernels.attention = cudnn: the run is on CPU ranks'

# --- the grid ---
title="tensor ranks that do not divide the heads"
launch 3 "$base" --parallel.tensor=3
mistake 'parallel.tensor = 3 does not divide model.num_heads = 4; valid.*1, 2, 4'

title="grid that does not divide the ranks"
launch 3 "$base" --parallel.tensor=2
mistake 'parallel.tensor \(2\) x parallel.pipeline \(1\) = 2 does not divide the 3 rank.*1x1, 1x3, 3x1'

title="grid whose number of ranks exceeds 64 bits"
launch_alone "$base" --parallel.tensor=4294967296 --parallel.pipeline=4294967296
expect_exit 2
expect_text 'parallel.tensor'

title="case-16: more stages than layers"
launch 4 "$base" --parallel.pipeline=4
mistake 'model.num_layers = 2 is less than parallel.pipeline \(4\) x parallel.virtual_chunks \(1\)'

title="case-18: batch that does not divide"
launch 2 "$base" --train.global_batch_size=10
mistake 'train.global_batch_size = 10 must be train.micro_batch_size \(2\) x data ranks \(2 = ranks 2 / \(parallel.tensor 1 x parallel.pipeline 1\)\).*8 or 12'

title="more threads than cores"
launch_alone "$base" --run.threads=1000
mistake 'run.threads = 1000, but this rank may use [0-9]+ core'

title="case-20: a launcher of another MPI"
OMPI_COMM_WORLD_SIZE=4 launch_alone "$base"
mistake '\(mpirun\) started 4 processes, but MPI sees 1 rank'

# --- data ---
title="data that does not exist"
launch 2 "$base" --data.path=nowhere.txt
mistake "data.path: 'nowhere.txt' cannot be read: No such file"

title="glob without a match"
launch_alone "$base" '--data.path=nowhere-*.txt'
mistake "no file matches 'nowhere-\*.txt'"

title="case-21: empty data"
: >empty.txt
launch 2 "$base" --data.path=empty.txt
mistake "empty.txt' is empty \(0 bytes\)"

title="case-21: too little data"
printf 'too short\n' >tiny.txt
launch 2 "$base" --data.path=tiny.txt
mistake 'data.path holds 10 tokens, too few: .*train.sequence_length = 32 needs 33.*at least 660 tokens'

title="data that is a folder"
mkdir -p folder
launch 2 "$base" --data.path=folder
mistake "'folder' is a directory"

title="data that may not be read"
cp text.txt locked.txt
chmod 000 locked.txt
whole_program=$program
if [ -r locked.txt ]; then # root: only without the capabilities that pass over permissions
  printf '#!/bin/sh\nexec setpriv --bounding-set -dac_override,-dac_read_search "%s" "$@"\n' "$program" >humble
  chmod 755 humble
  program=$scratch/humble
fi
if [ "$program" != "$whole_program" ] && ! setpriv --bounding-set -dac_override,-dac_read_search true 2>/dev/null; then
  skip "this user may read everything, and setpriv cannot change that"
else
  launch 2 "$base" --data.path=locked.txt
  mistake "locked.txt' cannot be opened: Permission denied"
fi
program=$whole_program

title="two bad files at once"
launch_alone "$base" --data.path=nowhere.txt,empty.txt
mistake "'nowhere.txt' cannot be read" "'empty.txt' is empty"

# 4,000 tokens of two bytes below 101; token 3,000 is 300 there.
title="case-24: token id beyond the vocabulary"
awk 'BEGIN { for (i = 0; i < 4000; ++i) printf "%s", i == 3000 ? "\\054\\001" : sprintf("\\%03o\\000", i % 100 + 1) }' >octal
printf '%b' "$(cat octal)" >tokens.bin
launch 2 "$base" --data.path=tokens.bin --model.vocab_size=257
mistake 'tokens.bin.*3000.*300.*257|tokens.bin.*300.*3000.*257'
title="case-24: the same file with a vocabulary that holds all"
launch_alone "$base" --data.path=tokens.bin --model.vocab_size=301 --train.steps=1 --checkpoint.at_end=false
expect_exit 0
expect_text 'format nanoGPT' 'sample +none'

title="token file without model.vocab_size"
launch_alone "$base" --data.path=tokens.bin
mistake 'model.vocab_size = 0 .*token files'

title="nanoGPT file of odd size"
{ cat tokens.bin; printf 'x'; } >odd.bin
launch_alone "$base" --data.path=odd.bin --model.vocab_size=301
mistake "odd.bin' has 8001 bytes.*must be even"

# llm.c: magic 20240520 = 0x0134D888, version 1, 4000 tokens = 0x0FA0, zeros up to 1,024 bytes.
llm_c_header() { printf '\210\330\064\001\001\000\000\000%b\000\000' "$1"; head -c 1012 /dev/zero; }
title="llm.c file whose header has the right count"
{ llm_c_header '\240\017'; cat tokens.bin; } >right.bin
launch_alone "$base" --data.path=right.bin --model.vocab_size=301 --train.steps=1 --checkpoint.at_end=false
expect_exit 0
expect_text 'format llm.c'
title="llm.c file whose header has a wrong count"
{ llm_c_header '\241\017'; cat tokens.bin; } >wrong.bin
launch_alone "$base" --data.path=wrong.bin --model.vocab_size=301
mistake "wrong.bin' says in its header that it holds 4001 tokens, so 9026 bytes, but it has 9024 bytes"

# --- output folders ---
title="output folder below a file"
launch 2 "$base" --run.dir=text.txt/run --log.metrics=
mistake 'run.dir = text.txt/run: cannot be created: Not a directory'

title="metrics file below a file"
launch 2 "$base" --log.metrics=text.txt/metrics.jsonl
mistake 'log.metrics = text.txt/metrics.jsonl: cannot be written'

# --- checkpoints ---
title="checkpoint to spoil"
rm -rf run
launch 2 "$base" --parallel.tensor=2
expect_exit 0
good=run/checkpoints/step-00000006
check "$good is there" [ -s $good/manifest.json ]
state_of_run() { find run -type f ! -path 'run/status/*' -exec cksum {} + | sort; }
state_of_run >before

# spoilt PATTERN...: resuming is the user's mistake, and nothing of the run has changed.
spoilt() {
  mistake "$@"
  state_of_run >after
  check "the run's files are as before" cmp -s before after
}

# copied: a copy of the checkpoint, to be damaged.
copied() {
  rm -rf copy
  cp -r $good copy
}
shard=copy/shard-00000-of-00002.h5

title="resume from a path that does not exist"
launch 2 "$base" --checkpoint.resume=run/checkpoints/step-99
spoilt 'checkpoint.resume = run/checkpoints/step-99: no checkpoint there'

title="checkpoint of another model"
launch 2 "$base" --checkpoint.resume=latest --model.num_layers=3 --model.hidden_size=64 --train.steps=9
spoilt 'model.num_layers = 3, but checkpoint .* has 2' 'model.hidden_size = 64, but checkpoint .* has 32'

title="a shard that is cut"
copied
truncate -s $(($(stat -c %s $shard) / 2)) $shard
launch 2 "$base" --checkpoint.resume=copy --train.steps=9
spoilt 'checkpoint copy is damaged: shard-00000-of-00002.h5 has [0-9]+ bytes, [0-9]+ were written'
launch 2 verify copy
expect_exit 1
expect_text '^DAMAGED +copy' 'shard-00000-of-00002.h5 has [0-9]+ bytes'

title="a shard that is missing"
copied
rm $shard
launch 2 "$base" --checkpoint.resume=copy --train.steps=9
spoilt 'checkpoint copy is damaged: shard-00000-of-00002.h5: No such file'

title="a flipped byte"
copied
printf '\377' | dd of=$shard bs=1 seek=200000 conv=notrunc 2>/dev/null
launch 2 "$base" --checkpoint.resume=copy --train.steps=9
spoilt 'checkpoint copy is damaged: shard-00000-of-00002.h5, .*: the hash is [0-9a-f]+, [0-9a-f]+ was written'

title="two shards that changed places"
copied
mv $shard copy/x && mv copy/shard-00001-of-00002.h5 $shard && mv copy/x copy/shard-00001-of-00002.h5
launch 2 "$base" --checkpoint.resume=copy --train.steps=9
expect_exit 2
expect_text 'checkpoint copy is damaged: shard-00000'

title="no manifest"
copied
rm copy/manifest.json
launch 2 "$base" --checkpoint.resume=copy --train.steps=9
expect_exit 2
expect_text 'no checkpoint there'

title="a file that is no checkpoint"
launch 2 "$base" --checkpoint.resume=text.txt --train.steps=9
spoilt 'checkpoint text.txt cannot be used: it is no HDF5 file, or damaged'

title="a missing index"
copied
rm copy/index.h5
launch 2 "$base" --checkpoint.resume=copy --train.steps=7 --run.dir=other --log.metrics=
expect_exit 0
expect_once 'copy/index.h5 is missing or cannot be read: only other programs need it'

title="latest falls back to the newest good checkpoint"
cp -r run fallback
cp -r $good fallback/checkpoints/step-00000004
cp -r $good fallback/checkpoints/step-00000005
printf '\377' | dd of=fallback/checkpoints/step-00000006/shard-00000-of-00002.h5 bs=1 seek=200000 conv=notrunc 2>/dev/null
rm fallback/checkpoints/step-00000005/manifest.json
launch 2 "$base" --run.dir=fallback --parallel.tensor=2 --checkpoint.resume=latest --train.steps=7 --log.metrics=
expect_exit 0
expect_once 'step-00000006 is damaged: shard-00000-of-00002.h5'
expect_once 'step-00000006 is passed over, looking for an older one'
expect_once 'step-00000005 is damaged: manifest.json is missing'
expect_once '^resume .*step-00000004: step 6'

title="verify of a run's folder"
launch 2 verify run
expect_exit 0
expect_once '^good +run/checkpoints/step-00000006: step 6, 2 file'
launch 2 verify nowhere
expect_exit 2
expect_once 'nowhere: no checkpoint there'
launch_alone verify
expect_exit 2
expect_text 'verify needs a checkpoint'

# --- keys of [checkpoint] ---
title="hints of ROMIO without it"
launch 2 "$base" --checkpoint.files=single --checkpoint.hints='romio_cb_write=enable'
mistake 'romio_cb_write is a hint of ROMIO, but checkpoint.io = auto uses OMPIO, which ignores it'
title="romio321 with its hints"
launch 2 "$base" --checkpoint.files=single --checkpoint.io=romio321 --checkpoint.hints='romio_cb_write=enable' --run.dir=romio \
  --log.metrics=
expect_exit 0
title="values of [checkpoint] that do not fit"
launch 2 "$base" --checkpoint.files=3 --checkpoint.compression=zip --checkpoint.keep_every=5 --checkpoint.load=weights
mistake 'checkpoint.files = 3: 1 to 2 files for 2 rank' 'checkpoint.compression = zip is not valid' \
  'checkpoint.keep_every = 5 has no effect with checkpoint.keep_last = 0' 'checkpoint.load = weights needs a checkpoint'
launch 2 "$base" --checkpoint.files=single --checkpoint.async=true
mistake 'checkpoint.async = true writes a file for each rank'

title="case-30: a folder without permission"
mkdir -p owned
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
  timeout -k 10 "$timeout_s" setpriv --reuid=65534 --regid=65534 --clear-groups "$program" "$base" \
    --run.dir="$scratch/owned/run" --log.metrics= >"$output" 2>&1 </dev/null
  code=$?
  shown=no
  mistake 'run.dir = .*owned/run: cannot be created: Permission denied'
else
  skip "needs root and setpriv"
fi

title="case-30: full disk"
mkdir -p disk
if mount -t tmpfs -o size=1900k tmpfs disk 2>/dev/null; then
  launch 2 "$base" --run.dir=disk/run --checkpoint.every_steps=1 --train.steps=8
  expect_failure
  expect_text 'checkpoint +NOT saved, training goes on: .*[0-9]+ .*[0-9]+' '^step +8/8' 'validation loss'
  kept=$(find disk/run/checkpoints -maxdepth 1 -name 'step-*' ! -name '*.tmp' | sort | tail -n 1)
  expect_text "$kept committed"
  check "no half checkpoint is left" [ -z "$(find disk/run/checkpoints -maxdepth 1 -name '*.tmp*')" ]
  launch 2 "$base" --checkpoint.resume="$kept" --train.steps=9 --run.dir=after_full_disk --log.metrics=
  title="case-30: the last checkpoint before the disk was full can be used"
  expect_exit 0
  expect_text '^step +9/9'
  title="case-30: a read-only file system"
  mount -o remount,ro disk
  launch 2 "$base" --run.dir=disk/other --log.metrics=
  mistake 'run.dir = disk/other: cannot be created: Read-only file system'
  umount disk
else
  skip "mount is not allowed here"
fi

# --- what needs no configuration or prints it ---
title="--help"
launch_alone --help
expect_exit 0
expect_text 'micro_batch_size' 'Exit codes'
title="--version"
launch 2 --version
expect_exit 0
expect_once '^potatochat [0-9]+\.[0-9]+\.[0-9]+'
title="--print-config, read back"
launch_alone "$base" --train.steps=77 --print-config
expect_exit 0
expect_text '^steps = 77' '^ffn_hidden_size = 128'
cp "$output" printed.ini
launch_alone printed.ini --print-config
expect_exit 0
check "prints the same again" cmp -s printed.ini "$output"
title="--print-config, read back: text with blanks and #"
launch_alone "$base" --sample.prompt='  a # b  ' --print-config
expect_exit 0
cp "$output" printed.ini
launch_alone printed.ini --print-config
expect_exit 0
check "prints the same again" cmp -s printed.ini "$output"

finish
