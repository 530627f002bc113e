#!/usr/bin/env bash
# The room check: a file of a room includes only its own room and rooms earlier in the list below.
#   scripts/check_rooms.sh [FOLDER]      checks FOLDER/include/potato and FOLDER/src (default: this repository)
#   scripts/check_rooms.sh --self-test   proves that the check finds what it should
# Violations are printed as file:line; the exit code is then 1.
set -euo pipefail

rooms="core config device tensor kernels comm params layers pipeline model optim data checkpoint train modes app"
first_mpi_room="comm"  # MPI's own header may be included from this room on

check() {
  local root=$1
  local folders=()
  for folder in include/potato src; do
    [ -d "$root/$folder" ] && folders+=("$folder")
  done
  if [ "${#folders[@]}" -eq 0 ]; then
    echo "check_rooms: neither $root/include/potato nor $root/src exists" >&2
    return 2
  fi
  # shellcheck disable=SC2016 # the program is awk's
  (cd "$root" && find "${folders[@]}" -type f \( -name '*.[ch]pp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
    sort -z | xargs -0 awk -v rooms="$rooms" -v first_mpi_room="$first_mpi_room" '
    function report(text) { print FILENAME ":" FNR ": " text; violations++ }
    BEGIN { n = split(rooms, name, " "); for (i = 1; i <= n; i++) place[name[i]] = i }
    FNR == 1 {
      files++
      split(FILENAME, part, "/")
      room = part[1] == "include" ? part[3] : part[2]
      known = room in place
      if (!known) report("\"" room "\" is not a room; the rooms are: " rooms)
    }
    known && /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
      line = $0
      sub(/^[ \t]*#[ \t]*include[ \t]*/, "", line)
      quoted = substr(line, 1, 1) == "\""
      target = substr(line, 2)
      sub(/[>"].*$/, "", target)
      if (target ~ /^potato\//) {
        split(target, part, "/")
        if (!(part[2] in place)) report("<" target "> belongs to no room")
        else if (place[part[2]] > place[room]) report("room " room " must not include room " part[2] " (" target ")")
      } else if (target ~ /(^|\/)\.\.\//) {
        report("a path with .. can leave the room (" target ")")
      } else if (target == "mpi.h" && place[room] < place[first_mpi_room]) {
        report("room " room " knows nothing of MPI (" target ")")
      } else if (quoted && target ~ /^(include|src)\//) {
        report("a path from the top goes around the rooms (" target ")")
      }
    }
    END {
      if (violations) { print "check_rooms: " violations " violations in " files " files"; exit 1 }
      print "check_rooms: " files " files, no violation"
    }')
}

# One tree without and one with each kind of violation.
self_test() {
  local tree
  tree=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now, not of later
  trap "rm -rf '$tree'" EXIT
  mkdir -p "$tree"/include/potato/{core,tensor,comm} "$tree"/src/{core,train}
  echo '#include "potato/core/error.hpp"' >"$tree/include/potato/tensor/tensor.hpp"
  printf '#pragma once\n#include <mpi.h>\n#include "potato/tensor/tensor.hpp"\n' >"$tree/include/potato/comm/comm.hpp"
  printf '#include "potato/comm/comm.hpp"\n#include "step.hpp"\n' >"$tree/src/train/step.cpp"
  check "$tree" >"$tree/log" || { echo "check_rooms: self-test: a good tree was refused"; cat "$tree/log"; return 1; }

  local bad=('#include "potato/tensor/tensor.hpp"' '  #  include <potato/train/step.hpp> // why'
             '#include "potato/cellar/wine.hpp"' '#include "../train/step.hpp"' '#include <mpi.h>'
             '#include "src/train/step.hpp"')
  local line
  for line in "${bad[@]}"; do
    printf '#include <vector>\n%s\n' "$line" >"$tree/src/core/bad.cpp"
    if check "$tree" >"$tree/log" || ! grep -q '^src/core/bad.cpp:2: ' "$tree/log"; then
      echo "check_rooms: self-test: not found: $line"
      return 1
    fi
  done
  rm "$tree/src/core/bad.cpp"
  mkdir "$tree/src/cellar"
  echo '#include <vector>' >"$tree/src/cellar/wine.cpp"
  if check "$tree" >"$tree/log" || ! grep -q '^src/cellar/wine.cpp:1: ' "$tree/log"; then
    echo "check_rooms: self-test: an unknown room was accepted"
    return 1
  fi
  echo "check_rooms: self-test: a good tree passes, all $((${#bad[@]} + 1)) bad ones are refused"
}

case "${1:-}" in
  --self-test) self_test ;;
  *) check "${1:-$(dirname "$0")/..}" ;;
esac
