#!/usr/bin/env bash
# Runs the tests, from nothing: the first call makes .venv and installs the test extra into it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'HELP'
bash launch/test.sh [--slow] [PYTEST ARGUMENT ...]

Makes .venv in the checkout, installs the package with its test extra there, and runs pytest in the
root of the checkout with the arguments given. Two workers share the tests; -n 0 runs them one after
the other, as -s and --pdb want it. --slow runs the tests marked slow instead.

Environment: PYTHON, the interpreter to make .venv with (default: the newest of 3.11 to 3.13);
BERT_JAX_TEST_DATA, a folder of real text and vocabularies, without which some tests are skipped.
HELP
  exit
fi

marked="not slow"
if [[ ${1:-} == --slow ]]; then
  marked="slow and not exhaustive"
  shift
fi
install "[test]"
cd "$ROOT"
# A test seldom keeps more than one core busy; more workers would meet the tests' time limits.
exec "$VENV/bin/python" -m pytest -m "$marked" -n 2 --dist worksteal "$@"
