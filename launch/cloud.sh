# shellcheck shell=bash
# Sourced by tpu.sh and gke.sh: how they check what they are given, and call Google Cloud.

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# The flags that both have.
name=${BERT_JAX_NAME:-} bucket=${BERT_JAX_BUCKET:-} data='' workdir='' slices=1 dry_run=''
arguments=() # of train

# Seconds between two looks at a run.
POLL=${BERT_JAX_POLL:-30}
# What the launchers set themselves, by --data and --workdir.
TAKEN=(--workdir --distributed --config.data.dir)

# Takes one of these flags; false for another.
take() {
  case $1 in
    --name=*) name=${1#*=} ;;
    --bucket=*) bucket=${1#*=} ;;
    --data=*) data=${1#*=} ;;
    --workdir=*) workdir=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --dry_run) dry_run=yes ;;
    *) return 1 ;;
  esac
}

# Whether help is asked for; what follows -- is for train.
wants_help() {
  local argument
  for argument in "$@"; do
    if [[ $argument == -- ]]; then return 1; fi
    if [[ $argument == --help || $argument == -h ]]; then return; fi
  done
  return 1
}

# check_command WORD ...: $command must be one of them.
check_command() {
  local word list
  for word in "$@"; do
    if [[ $command == "$word" ]]; then return; fi
  done
  list=$(printf '%s, ' "${@:1:$#-1}")
  fail "${command:-nothing}: must be ${list%, } or ${!#} (see --help)"
}

# Prints the words of a command so that a shell reads them as they are; for people too, so that a
# word is quoted only where it must be.
quoted() {
  local word quote=\' line=
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then
      word=$quote${word//$quote/$quote\\$quote$quote}$quote
    fi
    line+=" $word"
  done
  echo "${line# }"
}

# call COMMAND ...: runs it; a dry run prints it instead.
call() {
  if [[ -n $dry_run ]]; then quoted "$@" >&3; else "$@"; fi
}

# query ANSWER COMMAND ...: what the command prints; a dry run prints the command and takes ANSWER.
query() {
  local answer=$1
  shift
  call "$@" || return
  if [[ -n $dry_run && -n $answer ]]; then echo "$answer"; fi
}
exec 3>&1 # a query's own output is taken by its caller

pause() { if [[ -z $dry_run ]]; then sleep "$POLL"; fi; }

# check FLAG VALUE PATTERN WHAT: VALUE must be one, such as it says.
check() {
  if [[ -z $2 ]]; then fail "give $1, $4 (see --help)"; fi
  if [[ ! $2 =~ ^($3)$ ]]; then fail "$1=$2: must be $4"; fi
}

check_name() {
  check --name "$name" '[a-z][a-z0-9-]{0,38}[a-z0-9]' "2 to 40 lower-case letters, digits and -"
  check --slices "$slices" '[1-9][0-9]{0,2}' "a number of slices"
}

# What a run needs to know beside its name.
check_run() {
  local path='[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*' argument taken
  check --bucket "$bucket" '[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]' "the name of a bucket, without gs://"
  check --data "$data" "$path" "where in the bucket the token shards are, such as data/books"
  check --workdir "$workdir" "$path" "where in the bucket the run is to be, such as runs/books"
  if ((${#arguments[@]} == 0)); then
    fail "give the arguments of train after --, such as -- --config=base"
  fi
  for argument in "${arguments[@]}"; do
    for taken in "${TAKEN[@]}"; do
      if [[ $argument == "$taken" || $argument == "$taken="* ]]; then
        fail "$argument: set by this launcher; use its --data and --workdir"
      fi
    done
  done
}
