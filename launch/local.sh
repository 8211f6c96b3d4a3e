#!/usr/bin/env bash
# Pretrains on this machine, from nothing: the first call makes .venv and installs into it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'HELP'
bash launch/local.sh [--config=NAME] [--config.FIELD=VALUE ...] [--workdir=DIR]

Makes .venv in the checkout, installs the package there, and runs python -m bert_jax.train with the
arguments given; without --config it pretrains --config=tiny on the embedded corpus (minutes on a
laptop). bash launch/local.sh --config=tiny --help lists every field of a config.

Environment: PYTHON, the interpreter to make .venv with (default: the newest of 3.11 to 3.13).
HELP
  exit
fi

install ""
set_virtual_devices
config=(--config=tiny)
for argument in "$@"; do
  if [[ $argument == --config || $argument == --config=* ]]; then config=(); fi
done
exec "$VENV/bin/python" -m bert_jax.train ${config[@]+"${config[@]}"} "$@"
