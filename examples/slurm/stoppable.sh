#!/bin/bash
# Runs a launcher so that it can be stopped: of SIGTERM and SIGUSR1 the launcher hears nothing, and its children, which
# train, get SIGTERM. With `save_on_signal` they save a checkpoint and end with 0, and so does the launcher, which would
# have ended with 143, and killed them after 30 seconds. SIGUSR1 is the better one to send to all processes: those that
# judge answers in the middle of a step end by SIGTERM.
#
#   examples/slurm/stoppable.sh accelerate launch ... -m sage_trl.train --save_on_signal true ...
set -uo pipefail
trap 'pkill -TERM -P "$launcher"' TERM USR1

export PET_SIGNALS_TO_HANDLE=SIGINT  # or torch's launcher would catch SIGTERM again
(
    trap '' TERM USR1
    exec "$@"
) &
launcher=$!
# A signal ends `wait`, and not what is waited for
while kill -0 "$launcher" 2> /dev/null; do wait "$launcher"; done
wait "$launcher"
