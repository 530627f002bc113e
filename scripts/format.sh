#!/usr/bin/env bash
# Formats all C++ and CUDA sources in place, or with --check only names those that are not formatted (exit 1).
#   scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  '') mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
formatter=${CLANG_FORMAT:-$(command -v clang-format-14 || echo clang-format)}
if ! command -v "$formatter" >/dev/null; then
  echo "format: $formatter is not installed; scripts/install_deps.sh --lint brings it" >&2
  exit 1
fi

mapfile -d '' files < <(find src include tests -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) -print0)
"$formatter" "${mode[@]}" "${files[@]}"
echo "format: ${#files[@]} files, $("$formatter" --version)"
