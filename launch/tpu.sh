#!/usr/bin/env bash
# Pretrains on Cloud TPU: asks for slices, trains on all of their hosts, and begins again where they
# are taken away, until the run is done.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/tpu_calls.sh"

help() {
  cat <<'HELP'
bash launch/tpu.sh COMMAND --name=NAME --project=PROJECT --zone=ZONE [FLAG ...] [-- ARGUMENT ...]

commands:
  create   ask for the TPUs (a queued resource); nothing where they are there or on their way
  run      create, then train with the ARGUMENTs of python -m bert_jax.train until the run is done:
           wait for the TPUs, set up every host, train, and start again after a preemption
  resume   the same as run: a run goes on from its newest checkpoint
  watch    tell how a run stands until it is over, and do nothing about it
  logs     the last lines of every host's log; with --follow, all that comes
  stop     let the run save a checkpoint and end; resume goes on
  delete   give the TPUs back; nothing where there are none

flags:
  --name=NAME            of the queued resource, and of its slice (NAME-0, NAME-1, ... of several)
  --project=PROJECT      of Google Cloud (default: $BERT_JAX_PROJECT or $CLOUDSDK_CORE_PROJECT)
  --zone=ZONE            such as us-west4-a (default: $BERT_JAX_ZONE or $CLOUDSDK_COMPUTE_ZONE)
  --slices=N             how many; more than one meet over the data centre's network (default: 1)
  --follow               of logs: go on until Ctrl-C
  --dry_run              print the commands, run nothing
 for create, run and resume:
  --accelerator=TYPE     of a slice, such as v4-32, v5litepod-16, v5p-32 or v6e-16
  --spot                 cheaper, and may be taken away at any moment (default: on demand)
  --runtime=VERSION      of the hosts' software (default: the one for the accelerator)
  --create_flag=FLAG     one more flag of gcloud compute tpus queued-resources create, such as
                         --create_flag=--reserved; may be repeated
 for run and resume:
  --bucket=BUCKET        of Cloud Storage, with hierarchical namespace; without gs://
  --data=PATH            where in it the token shards are, made by python -m bert_jax.prepare
  --workdir=PATH         where in it the run is to be
  --max_starts=N         without a new checkpoint between them, before giving up (default: 5)
  --keep                 leave the TPUs there when the run is over; they go on to cost

NAME, PROJECT, ZONE, ACCELERATOR and BUCKET may stand in BERT_JAX_NAME and so on instead. Ctrl-C
ends the watching alone: the run goes on, and run, with the same flags, takes it up again. The
commits of this checkout are what runs on the hosts. docs/tpu.md tells all from an empty project on.

Exit codes: 0 the run is done; 1 it failed; 2 bad usage; 75 it was stopped or given up.
HELP
}

# Calls of gcloud in a row that fail, before giving up; and looks at hosts that cannot be reached,
# or of which some have ended, before all are started anew.
PATIENCE=3
OUT_OF_REACH="gcloud fails, see above; the run may go on, and launch/tpu.sh run takes it up again"
RESUME=75 # bert_jax/training/stopping.py

max_starts=5 keep=''

# The images of https://cloud.google.com/tpu/docs/runtimes for JAX.
runtime_of() {
  case $1 in
    v[234]-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "--accelerator=$1: not known here; give --runtime too (later TPUs: launch/gke.sh)" ;;
  esac
}

# What the lines of all hosts come to. A failure counts before the "start again" that it is to
# others.
judge() {
  awk -v resume=$RESUME '
    $2 == "running" { running++ }
    $2 == "stopped" { stopped++ }
    $2 == "exited" && $3 == 0 { finished++ }
    $2 == "exited" && $3 > 0 && $3 != resume && $3 <= 128 { failed = $3 }
    END {
      if (failed) print "failed", failed
      else if (NR && finished == NR) print "done"
      else if (running == NR || running && stopped) print "running"
      else if (running) print "ending"
      else if (stopped) print "stopped"
      else print "idle"
    }'
}

# Counts one start more, and anew where the last brought a new checkpoint. False where it is one too
# many.
count_start() {
  local before=$newest
  newest=$(checkpoints)
  if [[ $newest != "$before" ]]; then starts=0; fi
  starts=$((starts + 1))
  if ((starts > max_starts)); then
    say "$max_starts starts without a new checkpoint: giving up"
    return 1
  fi
}

tell() {
  if [[ $1 != "$told" ]]; then say "$1"; fi
  told=$1
}

# Sets `state` of the TPUs and the `verdict` on the run there. False where gcloud fails.
look() {
  verdict=unknown hosts=
  state=$(queued_state) || return
  case $state in
    '') verdict=none ;;
    SUSPENDED | FAILED) verdict=lost ;; # taken away, or never given
    ACTIVE)
      verdict=unreachable
      if hosts=$(hosts_status); then verdict=$(judge <<<"$hosts"); fi
      ;;
    *) verdict=waiting ;;
  esac
  case $verdict in
    none) tell "no TPUs" ;;
    waiting | lost) tell "the TPUs are $state" ;;
    running) tell "$(head -n 1 <<<"$hosts")" ;;
    unreachable | idle) tell "the TPUs are $state, the run is $verdict" ;;
    *) tell "the run is $verdict" ;;
  esac
}

# Returns the exit code of a run that is over.
conclude() {
  case $verdict in
    done) return 0 ;;
    stopped) return "$RESUME" ;;
    failed*)
      grep -E ' exited [1-9]' <<<"$hosts" >&2 || true
      return "${verdict#failed }"
      ;;
  esac
}

# Looks until the run is over; returns its exit code.
watch() {
  local misses=0
  while ((misses < PATIENCE)); do
    if look; then misses=0; else misses=$((misses + 1)); fi
    case $verdict in
      done | stopped | failed*)
        conclude
        return
        ;;
      none | lost | idle)
        say "nothing trains: launch/tpu.sh resume goes on"
        return "$RESUME"
        ;;
    esac
    pause
  done
  say "$OUT_OF_REACH"
  return 1
}

# Trains on TPUs that are there.
begin() {
  if on_slices setup_slice && on_slices start_slice; then
    assumed_hosts="$name/0 exited 0"
  else
    say "not all hosts could be started"
  fi
}

# Trains until the run is over; returns its exit code, 1 also where gcloud fails again and again.
run() {
  local misses=0 odd=0 fresh='' seen='' watched='' start=
  while ((misses < PATIENCE)); do
    if look; then misses=0; else misses=$((misses + 1)); fi
    case $verdict in
      none)
        count_start || return "$RESUME"
        if create; then fresh=yes seen=yes; elif [[ -z $seen ]]; then return 1; fi
        ;;
      lost) delete || true ;;
      unreachable | ending) odd=$((odd + 1)) ;;
      running) odd=0 watched=yes ;;
      idle) start=yes ;;
      done | stopped | failed*)
        if [[ -n $watched || $verdict == "done" ]]; then
          conclude
          return
        fi
        if on_slices allow_slice; then start=yes; fi # it was over before: this is a new start
        ;;
    esac
    if [[ ! $verdict =~ ^(none|unknown)$ ]]; then seen=yes; fi
    if ((odd == PATIENCE)); then
      odd=0
      if [[ $verdict == ending ]]; then start=yes; else delete || true; fi
    fi
    if [[ -n $start ]]; then
      # On new TPUs it is no start more: to ask for them was one.
      if [[ -z $fresh ]]; then count_start || return "$RESUME"; fi
      fresh='' start='' odd=0 watched=yes
      begin
    fi
    pause
  done
  say "$OUT_OF_REACH"
  return 1
}

if wants_help "$@"; then
  help
  exit
fi
command=${1:-}
check_command create run resume watch logs stop delete
shift
while (($#)); do
  case $1 in
    --)
      arguments=("${@:2}")
      break
      ;;
    --project=*) project=${1#*=} ;;
    --zone=*) zone=${1#*=} ;;
    --accelerator=*) accelerator=${1#*=} ;;
    --runtime=*) runtime=${1#*=} ;;
    --create_flag=*) create_flags+=("${1#*=}") ;;
    --max_starts=*) max_starts=${1#*=} ;;
    --spot) spot=yes ;;
    --keep) keep=yes ;;
    --follow) follow='+1 --follow' ;; # of tail: from the first line on
    *) take "$1" || fail "$1: no flag of this command (see --help); those of train go after --" ;;
  esac
  shift
done

check_name
check --project "$project" '[a-z][a-z0-9.:-]*' "a project of Google Cloud"
check --zone "$zone" '[a-z]+-[a-z]+[0-9]+-[a-z]' "a zone, such as us-west4-a"
if [[ $command =~ ^(create|run|resume)$ ]]; then
  check --accelerator "$accelerator" 'v[0-9][a-z]*-[0-9]+' "a kind of slice, such as v5litepod-16"
  check --max_starts "$max_starts" '[1-9][0-9]{0,8}' "a number"
  runtime=${runtime:-$(runtime_of "$accelerator")}
  check --runtime "$runtime" '[a-z0-9.-]+' "a version of the TPU software"
fi

told='' state='' verdict='' hosts='' starts=0 newest=''
if [[ -z $dry_run ]]; then
  command -v gcloud >/dev/null || fail "gcloud is not installed: https://cloud.google.com/sdk"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi
case $command in
  create)
    look
    case $verdict in
      none) create ;;
      lost)
        delete
        create
        ;;
    esac
    ;;
  run | resume)
    check_run
    call gcloud storage ls "gs://$bucket/$data/manifest.json" >/dev/null ||
      fail "gs://$bucket/$data: no token shards there; copy what python -m bert_jax.prepare made"
    pack
    trap 'say "the run goes on; the same command watches it again, stop and delete end it"
      exit 130' INT TERM
    code=0
    run || code=$?
    if [[ -z $keep && ! $verdict =~ ^(none|unknown)$ ]]; then
      delete || say "the TPUs may still be there, and cost"
    fi
    exit "$code"
    ;;
  watch)
    assumed_state=ACTIVE assumed_hosts="$name/0 exited 0"
    watch
    ;;
  logs) on_slices logs_of_slice ;;
  stop) on_slices stop_slice ;;
  delete)
    assumed_state=ACTIVE
    state=$(queued_state)
    if [[ -n $state ]]; then delete; else say "no TPUs"; fi
    ;;
esac
