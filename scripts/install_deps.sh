#!/usr/bin/env bash
# Installs what PotatoChat needs from the packages of Debian 12 or Ubuntu 24.04, and nothing that is already there.
#   scripts/install_deps.sh [--lint]
# --lint also installs what scripts/format.sh and scripts/lint.sh need. SKIP_DEPS=1 in the environment skips everything.
set -euo pipefail

if [ "${SKIP_DEPS:-0}" = 1 ]; then
  echo "install_deps: skipped, because SKIP_DEPS=1"
  exit 0
fi

# The dictionary is the default training text (scripts/get_corpus.sh).
packages=(g++ make cmake
          libopenmpi-dev openmpi-bin libhdf5-openmpi-dev hdf5-tools
          libboost-program-options-dev libdnnl-dev nlohmann-json3-dev libxxhash-dev
          catch2 dict-gcide)
tools=(g++ make cmake mpirun mpicc gzip)

case "${1:-}" in
  '') ;;
  --lint)
    # std::source_location needs clang 15 or newer; Debian 12's default is 14. libomp brings clang's omp.h.
    # clang-format is version 14 everywhere, since versions format differently.
    if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then
      tidy=clang-tidy-16 omp=libomp-16-dev format=clang-format
    else
      tidy=clang-tidy omp=libomp-dev format=clang-format-14
    fi
    packages+=("$format" "$tidy" "$omp")
    tools+=("$format" "$tidy")
    ;;
  *)
    echo "usage: scripts/install_deps.sh [--lint]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install_deps: this system has no apt. On Debian or Ubuntu these packages would be installed:"
  echo "  ${packages[*]}"
  absent=()
  for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || absent+=("$tool")
  done
  if [ "${#absent[@]}" -gt 0 ]; then
    echo "install_deps: not found: ${absent[*]}. Install them and what else the list names, then try again." >&2
    exit 1
  fi
  echo "install_deps: the tools are there; CMake will say which library is missing, if one is."
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -eq 0 ]; then
  echo "install_deps: all ${#packages[@]} packages are installed already"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: these packages are missing, and neither are you root nor is sudo there: ${missing[*]}" >&2
    echo "Ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
as_root+=(env DEBIAN_FRONTEND=noninteractive)
apt_options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)

echo "install_deps: missing, to be installed through apt: ${missing[*]}"
"${as_root[@]}" apt-get "${apt_options[@]}" -q update
"${as_root[@]}" apt-get "${apt_options[@]}" -q install -y --no-install-recommends "${missing[@]}"
echo "install_deps: installed ${missing[*]}"
