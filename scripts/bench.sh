#!/usr/bin/env bash
# GPT-2 124M on one rank with 2 threads beside PyTorch doing the same work (fp32, forward, backward, clipping, AdamW),
# in turns in one call, so that both meet the same machine.
#   scripts/bench.sh            (make bench builds first)
# Variables: PEER=pypi|debian|auto (auto: PyPI's newest, else Debian's python3-torch), ROUNDS (3), STEPS a round (5),
# THREADS (2), MICRO (4) samples of SEQ (64) tokens, VENV (.venv-bench). The environment's pip settings apply, so an index
# with CPU-only wheels can be named with PIP_INDEX_URL and saves a large download.
#
# build/tests/bench_gpt2 --micro M --seq S --steps N --threads K and scripts/torch_peer.py with the same arguments print
# a JSON object on one line, with "tokens_per_s".
set -euo pipefail
cd "$(dirname "$0")/.."

peer=${PEER:-auto} rounds=${ROUNDS:-3} steps=${STEPS:-5} threads=${THREADS:-2} micro=${MICRO:-4} seq=${SEQ:-64}
venv=${VENV:-.venv-bench}
ours=${BUILD:-build}/tests/bench_gpt2
if [ ! -x "$ours" ]; then
  echo "bench: $ours is missing; run make build" >&2
  exit 1
fi

has_torch() { "$1" -c 'import torch' >/dev/null 2>&1; }

apt_install() {
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get -q update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

# Sets python to one that has PyTorch from PyPI.
use_pypi() {
  if ! has_torch "$venv/bin/python"; then
    echo "bench: installing PyTorch from PyPI into $venv (for this benchmark only)"
    if ! python3 -m venv "$venv" 2>/dev/null; then
      apt_install python3-venv || return 1
      rm -rf "$venv"
      python3 -m venv "$venv" || return 1
    fi
    "$venv/bin/pip" install -q torch numpy || return 1
  fi
  python=$venv/bin/python
  has_torch "$python"
}

# The same with Debian's or Ubuntu's package, and OpenBLAS: without it that PyTorch multiplies with the reference BLAS, 20
# times slower.
use_debian() {
  if ! has_torch /usr/bin/python3 || ! dpkg-query -W libopenblas0-pthread >/dev/null 2>&1; then
    echo "bench: installing python3-torch and libopenblas0-pthread through apt (for this benchmark only)"
    apt_install python3-torch libopenblas0-pthread || return 1
  fi
  python=/usr/bin/python3
  has_torch "$python"
}

python=
case "$peer" in
  pypi) use_pypi ;;
  debian) use_debian ;;
  auto) use_pypi || { echo "bench: PyPI's PyTorch cannot be had; taking the distribution's"; use_debian; } ;;
  *) echo "bench: PEER is '$peer'; it must be pypi, debian or auto" >&2; exit 2 ;;
esac || { echo "bench: no PyTorch to compare with (PEER=$peer)" >&2; exit 1; }

# shellcheck source=scripts/env.sh
. scripts/env.sh
arguments=(--micro "$micro" --seq "$seq" --steps "$steps" --threads "$threads")
tokens_per_s() { sed -n 's/.*"tokens_per_s": *\([0-9.eE+]*\).*/\1/p' | tail -n 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds"
  for who in potatochat pytorch; do
    if [ "$who" = potatochat ]; then command=("$ours"); else command=("$python" scripts/torch_peer.py); fi
    "${command[@]}" "${arguments[@]}" | tee "$log/output"
    value=$(tokens_per_s <"$log/output")
    [ -n "$value" ] || { echo "bench: $who printed no tokens_per_s" >&2; exit 1; }
    echo "$value" >>"$log/$who"
  done
done
a=$(median <"$log/potatochat") b=$(median <"$log/pytorch")
version=$("$python" -c 'import torch; print(torch.__version__)')
echo "GPT-2 124M, fp32, $micro x $seq tokens a step, $threads threads, median of $rounds rounds in turns:"
awk -v a="$a" -v b="$b" -v version="$version" 'BEGIN {
  printf "  potatochat         %8.1f tokens/s\n  PyTorch %-10s %8.1f tokens/s\n  ratio              %8.2f\n", a, version, b, a / b }'
