#!/bin/sh
# mpirun.sh RANKS PROGRAM [ARGUMENTS...]: starts an MPI test as a user would.
set -eu
. "$(dirname "$0")/../../scripts/env.sh"
ranks=$1
shift
exec mpirun -np "$ranks" "$@"
