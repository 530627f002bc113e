#!/usr/bin/env bash
# Runs clang-tidy (settings in .clang-tidy) over the sources that the build knows; every finding is an error.
#   scripts/lint.sh [--changed [COMMIT] | FILE...]
# Without arguments all files; with --changed those that differ from COMMIT (default: HEAD). BUILD names another build
# folder than build/, JOBS another number of processes than all cores.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build}
jobs=${JOBS:-$(nproc)}
tidy=${CLANG_TIDY:-}
if [ -z "$tidy" ]; then
  for candidate in clang-tidy-16 clang-tidy-17 clang-tidy-18 clang-tidy-19 clang-tidy; do
    if command -v "$candidate" >/dev/null; then tidy=$candidate; break; fi
  done
fi
if [ -z "$tidy" ] || ! command -v "$tidy" >/dev/null; then
  echo "lint: clang-tidy is not installed; scripts/install_deps.sh --lint brings it" >&2
  exit 1
fi
if [ ! -f "$build/compile_commands.json" ]; then
  echo "lint: $build/compile_commands.json is missing; configure first (make build)" >&2
  exit 1
fi

# CMake writes one "file" line an entry, absolute.
mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" |
  sed "s|^$PWD/||" | grep -E '^(src|tests)/' | sort -u)
if [ "${1:-}" = --changed ]; then
  mapfile -t changed < <({ git diff --name-only "${2:-HEAD}"; git ls-files --others --exclude-standard; } | sort -u)
  mapfile -t files < <(comm -12 <(printf '%s\n' "${files[@]}") <(printf '%s\n' "${changed[@]}"))
elif [ $# -gt 0 ]; then
  files=("$@")
fi
if [ "${#files[@]}" -eq 0 ]; then
  echo "lint: nothing to do"
  exit 0
fi

start=$SECONDS
# GCC's own warnings and optimisation flags mean nothing to clang.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$jobs" "$tidy" --quiet -p "$build" \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument \
    2> >(grep -Ev '^[0-9]+ warnings? (and [0-9]+ errors? )?generated' >&2 || true)
echo "lint: ${#files[@]} files are clean, $((SECONDS - start)) s"
