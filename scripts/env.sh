# shellcheck shell=sh
# What Open MPI's launcher must know before ranks exist. Source it (from sh or bash) before mpirun:
#   . scripts/env.sh && mpirun -np 8 build/potatochat inputs/config.ini
# Values that are set already stay. Everything a rank can find out for itself, potatochat sets itself.

# More ranks than cores are welcome: a laptop can run a 2 x 2 x 2 grid.
: "${OMPI_MCA_rmaps_base_oversubscribe:=1}"
export OMPI_MCA_rmaps_base_oversubscribe

# Open MPI would bind each rank to one core (up to two ranks) or one socket, and all threads of a rank with it. A rank
# here has run.threads threads, which the launcher does not know, so a bound rank would crowd them on one core. The
# operating system places them well enough; whoever wants binding says so: mpirun --bind-to core --map-by slot:PE=4.
: "${OMPI_MCA_hwloc_base_binding_policy:=none}"
export OMPI_MCA_hwloc_base_binding_policy

# In containers everything runs as root, which mpirun refuses unless told twice.
if [ "$(id -u)" = 0 ]; then
  : "${OMPI_ALLOW_RUN_AS_ROOT:=1}"
  : "${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:=1}"
  export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
fi
