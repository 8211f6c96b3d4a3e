#!/usr/bin/env bash
# Pretrains on TPUs of a GKE cluster: a JobSet of which each job is a slice and each pod a host.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

help() {
  cat <<'HELP'
bash launch/gke.sh COMMAND --name=NAME [FLAG ...] [-- ARGUMENT ...]

commands:
  render   print the manifest that run gives to the cluster (launch/jobset.yaml, filled in)
  run      train with the ARGUMENTs of python -m bert_jax.train until the run is done; the cluster
           starts it again after a preemption, also where nobody watches
  resume   the same as run: a run goes on from its newest checkpoint
  watch    tell how a run stands until it is over
  logs     the last lines of every pod; with --follow, all that comes
  stop     end it: the pods are told to, and have two minutes to save; resume goes on
  delete   the same as stop

flags:
  --name=NAME            of the JobSet
  --namespace=NAMESPACE  of the cluster that kubectl is set up for (default: default)
  --follow               of logs: go on until Ctrl-C
  --dry_run              print the commands (and the manifest), run nothing
 for render, run and resume:
  --topology=KIND:SHAPE  of a slice, such as v4:2x2x4, v5e:4x4, v5p:2x2x4, v6e:4x4
  --slices=N             how many; more than one meet over the data centre's network (default: 1)
  --chips_per_host=N     of a slice of several hosts (default: 4); 8 for a v5e or v6e host of 2x4
  --spot                 on nodes that may be taken away at any moment
  --image=IMAGE          made by launch/Dockerfile
  --bucket=BUCKET        of Cloud Storage, with hierarchical namespace; without gs://
  --data=PATH            where in it the token shards are, made by python -m bert_jax.prepare
  --workdir=PATH         where in it the run is to be
  --service_account=NAME of Kubernetes, that may read and write the bucket (default: default)
  --max_restarts=N       in all (default: 100)

NAME, NAMESPACE, TOPOLOGY, IMAGE and BUCKET may stand in BERT_JAX_NAME and so on instead. Ctrl-C
ends the watching alone. docs/tpu.md tells all from an empty project on.

Exit codes: 0 the run is done; 1 it failed; 2 bad usage; 75 there is no such JobSet.
HELP
}

namespace=${BERT_JAX_NAMESPACE:-default} topology=${BERT_JAX_TOPOLOGY:-} image=${BERT_JAX_IMAGE:-}
chips_per_host=4 spot='' service_account=default max_restarts=100 follow=''
# What a dry run takes for the answer of the cluster.
assumed_state=''

# The label that the nodes of a kind of TPU carry.
# https://cloud.google.com/kubernetes-engine/docs/how-to/tpus
accelerator_of() {
  case $1 in
    v4) echo tpu-v4-podslice ;;
    v5e) echo tpu-v5-lite-podslice ;;
    v5p) echo tpu-v5p-slice ;;
    v6e) echo tpu-v6e-slice ;;
    *) fail "--topology=$topology: of v4, v5e, v5p or v6e" ;;
  esac
}

# Prints the chips of a shape such as 2x2x4.
chips_of() { echo $((${1//x/*})); }

# Prints a string as YAML and JSON have it. "$$" is a "$" that Kubernetes leaves alone.
yaml_string() {
  local text=$1 backslash=\\ quote=\" newline=$'\n' tab=$'\t' dollar=\$
  text=${text//"$backslash"/"$backslash$backslash"}
  text=${text//"$quote"/"$backslash$quote"}
  text=${text//"$newline"/"${backslash}n"}
  text=${text//"$tab"/"${backslash}t"}
  text=${text//"$dollar"/"$dollar$dollar"}
  echo "\"$text\""
}

# Values with only letters that mean nothing to YAML come here; arguments are quoted.
render() {
  local line argument hosts
  if ((chips < chips_per_host)); then chips_per_host=$chips; fi
  hosts=$((chips / chips_per_host))
  while IFS= read -r line; do
    if [[ $line == *"# spot" && -z $spot || $line == "#"* ]]; then continue; fi
    if [[ $line == *@ARGUMENTS@* ]]; then
      for argument in "${arguments[@]}"; do
        echo "${line%@ARGUMENTS@}$(yaml_string "$argument")"
      done
      continue
    fi
    line=${line//@NAME@/$name}
    line=${line//@NAMESPACE@/$namespace}
    line=${line//@MAX_RESTARTS@/$max_restarts}
    line=${line//@SLICES@/$slices}
    line=${line//@HOSTS@/$hosts}
    line=${line//@CHIPS@/$chips_per_host}
    line=${line//@SERVICE_ACCOUNT@/$service_account}
    line=${line//@ACCELERATOR@/$(accelerator_of "${topology%%:*}")}
    line=${line//@TOPOLOGY@/${topology#*:}}
    line=${line//@IMAGE@/$image}
    line=${line//@BUCKET@/$bucket}
    line=${line//@DATA@/$data}
    line=${line//@WORKDIR@/$workdir}
    echo "${line% # spot}"
  done <"$ROOT/launch/jobset.yaml"
}

# Prints "there/", "there/Completed" or "there/Failed", nothing where there is none.
jobset_state() {
  query "$assumed_state" kubectl get jobset "$name" --namespace="$namespace" --ignore-not-found \
    --output='jsonpath=there/{.status.terminalState}'
}

apply() {
  if [[ -n $dry_run ]]; then
    printf '%s\n' "kubectl apply --filename=- <<'END'" "$(render)" END >&3
  else
    render | kubectl apply --filename=- >/dev/null
  fi
  assumed_state=there/Completed
}

delete() {
  call kubectl delete jobset "$name" --namespace="$namespace" --ignore-not-found \
    --cascade=foreground
  assumed_state=''
}

# Returns the exit code of the run.
watch() {
  local state told=none
  while state=$(jobset_state); do
    if [[ $state != "$told" ]]; then
      case $state in
        '') say "there is no JobSet" ;;
        there/) say "the JobSet is there" ;;
        *) say "the run is ${state#there/}" ;;
      esac
    fi
    told=$state
    case $state in
      '') return 75 ;;
      */Completed) return 0 ;;
      */Failed) return 1 ;;
    esac
    pause
  done
  say "kubectl fails, see above; the run may go on, and launch/gke.sh watch takes it up again"
  return 1
}

if wants_help "$@"; then
  help
  exit
fi
command=${1:-}
check_command render run resume watch logs stop delete
shift
while (($#)); do
  case $1 in
    --)
      arguments=("${@:2}")
      break
      ;;
    --namespace=*) namespace=${1#*=} ;;
    --topology=*) topology=${1#*=} ;;
    --chips_per_host=*) chips_per_host=${1#*=} ;;
    --image=*) image=${1#*=} ;;
    --service_account=*) service_account=${1#*=} ;;
    --max_restarts=*) max_restarts=${1#*=} ;;
    --spot) spot=yes ;;
    --follow) follow=yes ;;
    *) take "$1" || fail "$1: no flag of this command (see --help); those of train go after --" ;;
  esac
  shift
done

check_name
check --namespace "$namespace" '[a-z0-9][a-z0-9-]*' "a namespace of the cluster"
if [[ $command =~ ^(render|run|resume)$ ]]; then
  check_run
  check --topology "$topology" 'v[0-9a-z]+:[1-9][0-9]*(x[1-9][0-9]*){1,2}' \
    "a kind of TPU and a shape, such as v5e:4x4"
  accelerator_of "${topology%%:*}" >/dev/null
  check --chips_per_host "$chips_per_host" '[1248]' "1, 2, 4 or 8"
  chips=$(chips_of "${topology#*:}")
  if ((chips > chips_per_host && chips % chips_per_host)); then
    fail "--topology=$topology: its chips are no multiple of --chips_per_host=$chips_per_host"
  fi
  check --image "$image" '[a-z0-9][A-Za-z0-9._/:@-]*' "an image, made by launch/Dockerfile"
  check --service_account "$service_account" '[a-z0-9][a-z0-9.-]*' "one of the namespace"
  check --max_restarts "$max_restarts" '[0-9]{1,8}' "a number"
fi
if [[ -z $dry_run && $command != render ]]; then
  command -v kubectl >/dev/null ||
    fail "kubectl is not installed: gcloud components install kubectl"
fi

case $command in
  render) render ;;
  run | resume)
    state=$(jobset_state)
    # One that is over stands in the way of the next.
    if [[ $state =~ (Completed|Failed) ]]; then delete; fi
    if [[ $state != there/ ]]; then apply; fi
    watch
    ;;
  watch)
    assumed_state=there/Completed
    watch
    ;;
  logs)
    flags=(--tail=100)
    if [[ -n $follow ]]; then flags=(--tail=-1 --follow); fi
    call kubectl logs --namespace="$namespace" --container=train --prefix --ignore-errors \
      --max-log-requests=1024 --selector="jobset.sigs.k8s.io/jobset-name=$name" "${flags[@]}"
    ;;
  stop | delete) delete ;;
esac
