#!/usr/bin/env bash
# Runs on each host of a TPU slice: what tpu.sh asks for over ssh, and what a pod of gke.sh does.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'HELP'
bash launch/tpu_host.sh COMMAND ...

  setup BUCKET                              Python, the package, and the bucket at ~/gcs
  start NODE DATA WORKDIR [ARGUMENT ...]    train, in the background
  train DATA WORKDIR [ARGUMENT ...]         train, here
  status NODE                               how the run on this host stands, in a line
  logs NODE LINES [--follow]                the last lines of its log
  stop                                      let it save and end; none starts until allow
  allow                                     after a stop, let one start again

Runs on each host of a TPU slice, where tpu.sh and gke.sh call it; you need not. DATA and WORKDIR
are directories, ARGUMENT those of python -m bert_jax.train, and NODE the name of the slice. What
status and logs print begins with NODE/WORKER.
HELP
  exit
fi

GCS=$HOME/gcs
STATE=$HOME/bert_jax_run # lock (held by the run), pid, log, exit_code, stopped
METADATA=http://metadata.google.internal/computeMetadata/v1/instance/attributes
# Seconds for a run to end by itself before it is killed: where it is stopped, and saves; and where
# it stands in the way of a start, as its peers have gone.
STOP_GRACE=600 START_GRACE=60
# Seconds for which a pod waits with exit code 75: a failure elsewhere that it follows from is to be
# seen first.
LINGER=${BERT_JAX_LINGER:-10}
RESUME=75 # bert_jax/training/stopping.py

# The images of Cloud TPU come with Python 3.10, and update themselves while they start.
apt_install() {
  sudo apt-get -qq -o DPkg::Lock::Timeout=600 update
  sudo apt-get -qq -y -o DPkg::Lock::Timeout=600 install "$@" >/dev/null
}

install_python() {
  if (find_python) >/dev/null 2>&1; then return; fi
  say "installing Python 3.12"
  sudo add-apt-repository -y ppa:deadsnakes/ppa >/dev/null
  apt_install python3.12-venv
}

install_gcsfuse() {
  local key=/usr/share/keyrings/cloud.google.asc site=https://packages.cloud.google.com/apt
  if command -v gcsfuse >/dev/null; then return; fi
  say "installing Cloud Storage FUSE"
  curl -sSf "$site/doc/apt-key.gpg" | sudo tee "$key" >/dev/null
  echo "deb [signed-by=$key] $site gcsfuse-$(lsb_release -cs) main" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
  apt_install gcsfuse
}

# Hosts read what others have written: none may remember what a file or folder was. Streaming writes
# are off, as fsync would not bring a file to the bucket.
mount_bucket() {
  mkdir -p "$GCS"
  if mountpoint -q "$GCS"; then return; fi
  gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 \
    --enable-streaming-writes=false "$1" "$GCS" >/dev/null
}

# This host's name: the slice's, and its number there.
host_name() {
  local worker
  worker=$(curl -sf -H 'Metadata-Flavor: Google' "$METADATA/agent-worker-number" || hostname)
  echo "$1/$worker"
}

stage() {
  for _ in 1 2 3; do # a bucket may be out of reach for a while
    if "$VENV/bin/python" -m bert_jax.stage "$1" "$2"; then return; fi
  done
  return 1
}

# train DATA WORKDIR ARGUMENT ...: returns the exit code of training. SIGTERM is passed on.
train() {
  local data=$1 workdir=$2 child code signal=yes staged
  staged=$HOME/staged/$(basename "$data")
  shift 2
  stage "$data" "$staged" || return
  PYTHONUNBUFFERED=1 "$VENV/bin/python" -m bert_jax.train --distributed \
    --config.data.dir="$staged" --workdir="$workdir" "$@" &
  child=$!
  trap 'signal=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
  while [[ -n $signal ]]; do # which breaks off a wait
    signal='' code=0
    wait "$child" || code=$?
  done
  return "$code"
}

# Looks may meet one another, and the start: they share the lock, and the start waits. With a host
# that is deleted its lock goes, which is no run.
running() {
  local held=0
  flock --shared -n "$STATE/lock" true 2>/dev/null || held=$?
  ((held == 1))
}

# end SECONDS: ends the run on this host, by force where it takes longer.
end() {
  local deadline=$((SECONDS + $1)) group
  if ! running; then return; fi
  group=$(<"$STATE/pid")
  kill -TERM -- "-$group" 2>/dev/null || true
  while running && ((SECONDS < deadline)); do sleep 0.2; done
  if running; then kill -KILL -- "-$group" 2>/dev/null || true; fi
}

# In the background of `start`: holds the lock, so that it is known to run; leaves its exit code.
background() {
  local node=$1 workdir=$3 code=0
  shift
  exec 9>>"$STATE/lock"
  flock 9
  # A stop leaves its mark, and then looks who holds the lock: it ends this run, or is seen here.
  if [[ -f $STATE/stopped ]]; then code=$RESUME; else train "$@" || code=$?; fi
  echo "$code" >"$STATE/exit_code.tmp"
  mv "$STATE/exit_code.tmp" "$STATE/exit_code"
  mkdir -p "$workdir/logs"
  cp "$STATE/log" "$workdir/logs/$(host_name "$node" | tr / -)-$(date -u +%Y%m%dT%H%M%S).log"
}

start() {
  mkdir -p "$STATE"
  end $START_GRACE
  rm -f "$STATE/exit_code"
  setsid nohup bash "${BASH_SOURCE[0]}" background "$@" >"$STATE/log" 2>&1 </dev/null &
  echo $! >"$STATE/pid"
  until running || [[ -f $STATE/exit_code ]] || ! kill -0 $!; do sleep 0.1; done
}

status() {
  local name told last
  name=$(host_name "$1")
  mkdir -p "$STATE"
  touch "$STATE/log"
  last=$(tail -c 400 "$STATE/log" | sed '/^ *$/d' | tail -n 1)
  if running; then
    told="running $last"
  elif [[ -f $STATE/exit_code ]]; then
    told="exited $(<"$STATE/exit_code") $last"
  elif [[ -f $STATE/pid ]]; then
    told="exited 137 $last" # killed, or the host was started anew
  else
    told=absent
  fi
  if [[ -f $STATE/stopped && $told =~ ^(absent|exited (75|1[2-9][0-9]) ) ]]; then told=stopped; fi
  echo "$name $told"
}

logs() {
  local name lines=$2 follow=${3:-}
  name=$(host_name "$1")
  touch "$STATE/log"
  tail -n "$lines" ${follow:+-F} "$STATE/log" | sed -u "s|^|[$name] |"
}

case ${1:-} in
  setup)
    install_python
    install_gcsfuse
    mount_bucket "$2"
    install "[tpu]"
    ;;
  start | background | status | logs) "$@" ;;
  train)
    code=0
    "$@" || code=$?
    if ((code == RESUME)); then sleep "$LINGER"; fi
    exit "$code"
    ;;
  stop)
    mkdir -p "$STATE"
    touch "$STATE/stopped"
    end $STOP_GRACE
    ;;
  allow) rm -f "$STATE/stopped" ;;
  *) fail "say what to do (see --help)" ;;
esac
