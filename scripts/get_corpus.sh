#!/usr/bin/env bash
# Writes the default training text, unless it is there already:
#   scripts/get_corpus.sh [data/corpus.txt]
# It is the Collaborative International Dictionary of English (GCIDE, about 40 MB of English, GNU GPL), as Debian's and
# Ubuntu's package dict-gcide brings it. Any other text works as well: set data.path.
set -euo pipefail

corpus=${1:-data/corpus.txt}
source=/usr/share/dictd/gcide.dict.dz
min_bytes=30000000  # the package of Debian 12 unpacks to 39952321 bytes

if [ -s "$corpus" ]; then
  echo "get_corpus: $corpus is there already ($(stat -c %s "$corpus") bytes)"
  exit 0
fi
if [ ! -r "$source" ]; then
  echo "get_corpus: $source is missing; it comes with the package dict-gcide (apt-get install dict-gcide)." >&2
  echo "Without it, point data.path at a text of your own: ... --data.path=my_text.txt" >&2
  exit 1
fi

mkdir -p "$(dirname "$corpus")"
beside=$corpus.tmp.$$
trap 'rm -f "$beside"' EXIT
gzip -dc <"$source" >"$beside"  # dictzip files are gzip files with an index in the header
bytes=$(stat -c %s "$beside")
if [ "$bytes" -lt "$min_bytes" ]; then
  echo "get_corpus: $source unpacks to $bytes bytes only, at least $min_bytes were expected; is the package whole?" >&2
  exit 1
fi
mv "$beside" "$corpus"
echo "get_corpus: wrote $corpus ($bytes bytes): the GCIDE dictionary, from $source of the package dict-gcide"
