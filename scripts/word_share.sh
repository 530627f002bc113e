#!/usr/bin/env bash
# The share of the words of a generated text that occur in the training text:
#   scripts/word_share.sh run/sample.txt data/corpus.txt
# A word is a run of letters, in lower case; each occurrence in the generated text counts once.
set -euo pipefail
export LC_ALL=C
words() { tr 'A-Z' 'a-z' <"$1" | tr -cs 'a-z' '\n' | sed '/^$/d'; }
words "$2" | sort -u | awk 'NR == FNR { known[$0] = 1; next } { ++all; if ($0 in known) ++found }
  END { printf "%d of %d words occur in the training text: %.1f %%\n", found, all, 100 * found / all }' - <(words "$1")
