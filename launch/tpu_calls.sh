# shellcheck shell=bash
# Sourced by tpu.sh: what it asks of Google Cloud, and of the hosts of its slices.

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

project=${BERT_JAX_PROJECT:-${CLOUDSDK_CORE_PROJECT:-}}
zone=${BERT_JAX_ZONE:-${CLOUDSDK_COMPUTE_ZONE:-}}
accelerator=${BERT_JAX_ACCELERATOR:-} runtime='' spot='' follow='' create_flags=()
# What a dry run takes for the answers of Google Cloud.
assumed_state='' assumed_hosts=''
scratch='' # a folder, gone at the end

# Prints the state of the queued resource, nothing where there is none.
queued_state() {
  query "$assumed_state" gcloud compute tpus queued-resources list --project="$project" \
    --zone="$zone" --filter="name~/$name\$" --format='value(state.state)'
}

create() {
  local nodes=(--node-id="$name") tier=()
  if ((slices > 1)); then nodes=(--node-count="$slices" --node-prefix="$name"); fi
  if [[ -n $spot ]]; then tier=(--spot); fi
  call gcloud compute tpus queued-resources create "$name" --project="$project" --zone="$zone" \
    "${nodes[@]}" --accelerator-type="$accelerator" --runtime-version="$runtime" --async --quiet \
    ${tier[@]+"${tier[@]}"} ${create_flags[@]+"${create_flags[@]}"} || return
  assumed_state=ACTIVE assumed_hosts=$name/0\ absent
}

delete() {
  call gcloud compute tpus queued-resources delete "$name" --project="$project" --zone="$zone" \
    --force --quiet || return
  assumed_state=''
}

# Prints the names of the slices.
nodes() {
  local index
  if ((slices == 1)); then
    echo "$name"
  else
    for ((index = 0; index < slices; index++)); do echo "$name-$index"; done
  fi
}

# on_slices FUNCTION [ARGUMENT ...]: FUNCTION NODE ARGUMENT ... for all slices at once; false where
# it failed for one.
on_slices() {
  local node process failed='' processes=()
  for node in $(nodes); do
    if [[ -n $dry_run ]]; then
      "$1" "$node" "${@:2}"
    else
      "$1" "$node" "${@:2}" &
      processes+=($!)
    fi
  done
  for process in ${processes[@]+"${processes[@]}"}; do wait "$process" || failed=yes; done
  [[ -z $failed ]]
}

# A host that has gone does not close its connection.
SSH=(--quiet --worker=all --ssh-flag=-oConnectTimeout=10 --ssh-flag=-oServerAliveInterval=15)

# ask NODE COMMAND: runs a shell command on every host of a slice.
ask() {
  call gcloud compute tpus tpu-vm ssh "$1" --project="$project" --zone="$zone" "${SSH[@]}" \
    --command="$2"
}

HOST=bert_jax/launch/tpu_host.sh

setup_slice() {
  call gcloud compute tpus tpu-vm scp "$archive" "$1:bert_jax.tar.gz" --project="$project" \
    --zone="$zone" --quiet --worker=all &&
    ask "$1" "mkdir -p bert_jax && tar -xzf bert_jax.tar.gz -C bert_jax && $(
      quoted bash $HOST setup "$bucket"
    )"
}
start_slice() {
  ask "$1" "$(quoted bash $HOST start "$1" "gcs/$data" "gcs/$workdir" "${arguments[@]}")"
}
status_of_slice() {
  ask "$1" "if [ -f $HOST ]; then bash $HOST status $1; else echo $1/- absent; fi"
}
logs_of_slice() { ask "$1" "bash $HOST logs $1 ${follow:-100}"; }
allow_slice() { ask "$1" "bash $HOST allow"; }
stop_slice() { ask "$1" "bash $HOST stop"; }

# Prints a line for each host: NODE/WORKER absent|stopped|running LINE|exited CODE LINE.
hosts_status() {
  if [[ -n $dry_run ]]; then
    on_slices status_of_slice
    echo "$assumed_hosts"
  elif ! on_slices status_of_slice 2>"$scratch/errors"; then
    cat "$scratch/errors" >&2 # else it says at every look how it connects
    return 1
  fi
}

# Prints the checkpoints that the run has.
checkpoints() {
  query '' gcloud storage ls "gs://$bucket/$workdir/checkpoints/" 2>/dev/null |
    grep -E '/[0-9]+/$' || true
}

# The commits of this checkout, for the hosts.
pack() {
  archive=bert_jax.tar.gz
  if [[ -z $dry_run ]]; then
    archive=$scratch/$archive
    if [[ -n $(git -C "$ROOT" status --porcelain 2>/dev/null) ]]; then
      say "what is not committed does not go to the hosts"
    fi
  fi
  call git -C "$ROOT" archive --format=tar.gz --output="$archive" HEAD ||
    fail "$ROOT: must be a git checkout with a commit"
}
