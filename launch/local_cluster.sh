#!/usr/bin/env bash
# Pretrains with several processes on this machine, as a pod of hosts would, and starts them all
# again where one is lost.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# Starts of the lot that bring no new checkpoint, before giving up.
MAX_STARTS=3
# Time for the others to end by themselves where one has ended, in seconds.
GRACE=10
RESUME=75 # bert_jax/training/stopping.py

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'HELP'
bash launch/local_cluster.sh PROCESSES --workdir=DIR --config=NAME [--config.FIELD=VALUE ...]

Runs so many processes of python -m bert_jax.train with the arguments given, which meet at a free
port of this machine. Each line they print begins with the number of its process. They run on the
CPU, each with one device, or with those of XLA_FLAGS=--xla_force_host_platform_device_count=4.

Where one ends with exit code 75 ("start again") or is killed, the others are ended and all start
again; the run goes on from its newest checkpoint. Three starts without a new checkpoint end it.
SIGTERM, Ctrl-C and the end of the terminal (SIGHUP) are passed on: the run saves, and ends with 75.
Any other exit code ends the others and is that of this command.

Environment: PYTHON, the interpreter to make .venv with (default: the newest of 3.11 to 3.13).
HELP
  exit
fi

processes=${1:-}
[[ $processes =~ ^[1-9][0-9]*$ ]] || fail "say how many processes to start (see --help)"
shift
workdir=
for argument in "$@"; do
  if [[ $argument == --workdir=* ]]; then workdir=${argument#--workdir=}; fi
done
[[ -n $workdir ]] || fail "give --workdir=DIR (see --help)"

install ""
set_default JAX_PLATFORMS cpu
set_virtual_devices

# A terminal's Ctrl-C does not end it: it is for the processes, which are not there yet.
free_port() {
  trap '' INT TERM HUP
  "$VENV/bin/python" -c 'import socket
s = socket.socket()
s.bind(("localhost", 0))
print(s.getsockname()[1])'
}

# Output goes through a filter that outlives Ctrl-C, which a terminal sends to all.
prefixed() {
  trap '' INT TERM HUP
  exec sed -u "s/^/[$1] /"
}

running=()
start() {
  local index
  JAX_COORDINATOR_ADDRESS=localhost:$(free_port)
  export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES=$processes
  running=()
  for ((index = 0; index < processes; index++)); do
    JAX_PROCESS_ID=$index PYTHONUNBUFFERED=1 \
      "$VENV/bin/python" -m bert_jax.train "$@" > >(prefixed "$index") 2>&1 &
    running+=($!)
  done
}

send() { kill "-$1" ${running[@]+"${running[@]}"} 2>/dev/null || true; }

stopping=
trap 'stopping=yes' INT TERM HUP
trap '' PIPE # what nobody reads any more ends nothing
trap 'send KILL' EXIT

# Waits for all to end, and has them end where this script is to; sets `code` to that of the worst: a
# failure before a loss before success.
await() {
  local pid status ended deadline=
  code=0
  while ((${#running[@]})); do
    sleep 0.2 || true # a terminal's Ctrl-C ends it, too
    if [[ $stopping == yes ]]; then # all have been started, where it came before, too
      stopping=told
      send TERM
    fi
    local -a still=()
    for pid in "${running[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then
        still+=("$pid")
        continue
      fi
      status=0
      wait "$pid" || status=$?
      ended=${status}
      if ((ended > 128)); then status=$RESUME; fi
      if ((status != 0 && (code == 0 || code == RESUME))); then code=$status; fi
      if ((status != 0)) && [[ -z $deadline ]]; then
        say "a process ended with exit code $ended"
        deadline=$((SECONDS + GRACE))
      fi
    done
    running=(${still[@]+"${still[@]}"})
    if [[ -n $deadline ]] && ((SECONDS >= deadline)); then send KILL; fi
  done
}

starts=0
newest=
while true; do
  start "$@"
  await
  if [[ $code != "$RESUME" || -n $stopping ]]; then exit "$code"; fi
  before=$newest
  newest=$(find "$workdir/checkpoints" -maxdepth 1 2>/dev/null | sort || true)
  starts=$((starts + 1))
  if [[ $newest != "$before" ]]; then starts=1; fi
  if ((starts == MAX_STARTS)); then
    say "$MAX_STARTS starts without a new checkpoint: giving up"
    exit "$RESUME"
  fi
  say "starting all $processes processes again"
done
