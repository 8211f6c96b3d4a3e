# shellcheck shell=bash
# Sourced by the launchers. Makes .venv in the checkout, keeps the package installed there, and
# sets what the process must find in its environment when it starts.

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

say() { echo "bert_jax: $*" >&2 || true; }
fail() {
  say "$*"
  exit 2
}

# Prints an interpreter of a supported version that can make virtual environments: $PYTHON, or the
# newest on PATH. Each is started, as a version manager's stub may exist and not run.
find_python() {
  local candidate supported=
  local -a candidates=(python3.13 python3.12 python3.11 python3)
  if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
      >/dev/null 2>&1 || continue
    supported=$candidate
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  if [[ -n $supported ]]; then
    fail "$supported cannot make a virtual environment: sudo apt install python3-venv"
  fi
  fail "no Python 3.11, 3.12 or 3.13 among ${candidates[*]}:" \
    "install one (sudo apt install python3 python3-venv) or set PYTHON to its path"
}

# install "" or install "[test]": the package with an extra, again only when what it is made from
# has changed. The stamp is written last, so an interrupted installation is repeated.
install() {
  local extra=$1 stamp=$VENV/installed$1 wanted python
  wanted="$ROOT $(cat "$ROOT/setup.py" "$ROOT/constraints.txt" | cksum)"
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then return; fi
  if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making $VENV with $("$python" --version)"
    "$python" -m venv --clear "$VENV" || fail "could not make $VENV"
  fi
  say "installing the package and what it needs (the first time takes minutes and 2.5 GB of disk," \
    "or 8 with PyTorch for the tests)"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check \
    -c "$ROOT/constraints.txt" -e "$ROOT$extra" || fail "the installation failed: see above"
  echo "$wanted" >"$stamp"
}

# A value that the user has set stays.
set_default() { export "$1=${!1:-$2}"; }

# Virtual CPU devices (XLA_FLAGS=--xla_force_host_platform_device_count=8) wait for one another in
# collectives, and hang unless the backend has at least two threads for each.
set_virtual_devices() {
  if [[ ${XLA_FLAGS:-} =~ xla_force_host_platform_device_count=([0-9]+) ]]; then
    set_default PJRT_NPROC $((4 * BASH_REMATCH[1]))
  fi
}
