#!/bin/sh
# Stands in for the programs of a TPU host that tpu_host.sh calls, by the name it is called by.
# Python and Cloud Storage FUSE are missing until they are installed.
set -eu
self=$FAKE_CLOUD/host_bin/fake_host
refuse() {
  echo "$0: not as it should be called: $*" >&2
  exit 64
}

# Nothing of this machine is changed.
sudo() {
  case "$*" in
    "tee "*) cat >/dev/null ;;
    "add-apt-repository -y ppa:deadsnakes/ppa") ;;
    "apt-get -qq -o DPkg::Lock::Timeout=600 update") ;;
    "apt-get -qq -y -o DPkg::Lock::Timeout=600 install python3.12-venv") touch "$HOME/has_python" ;;
    "apt-get -qq -y -o DPkg::Lock::Timeout=600 install gcsfuse") ln -s "$self" "$HOME/bin/gcsfuse" ;;
    *) refuse "$@" ;;
  esac
}

curl() {
  case "$*" in
    "-sf -H Metadata-Flavor: Google http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number")
      printf %s "${FAKE_HOST##*-}"
      ;;
    "-sSf https://packages.cloud.google.com/apt/doc/apt-key.gpg") ;;
    *) refuse "$@" ;;
  esac
}

gcsfuse() {
  case "$*" in
    "--implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 --enable-streaming-writes=false $5 $6") ;;
    *) refuse "$@" ;;
  esac
  rmdir "$6"
  ln -s "$FAKE_CLOUD/buckets/$5" "$6"
}

python() {
  case "$*" in
    "-c "* | "-m pip --version") ;;
    --version) echo "Python 3.12.0" ;;
    "-m venv --clear "*)
      mkdir -p "$4/bin"
      ln -s "$self" "$4/bin/python"
      ;;
    "-m pip install -qq --disable-pip-version-check -c $HOME/bert_jax/constraints.txt -e $HOME/bert_jax[tpu]") ;;
    "-m bert_jax.stage "*)
      if rm "$FAKE_CLOUD/stage_fails" 2>/dev/null; then exit 1; fi # once
      test -f "$3/manifest.json"
      mkdir -p "$(dirname "$4")"
      cp -r "$3" "$4"
      ;;
    "-m bert_jax.train "*) exec "$FAKE_CLOUD/host_bin/fake_train" "$@" ;;
    *) refuse "$@" ;;
  esac
}

case ${0##*/} in
  python) python "$@" ;;
  python3*)
    test -f "$HOME/has_python"
    python "$@"
    ;;
  mountpoint) test -L "$2" ;;
  lsb_release) echo jammy ;;
  *) "${0##*/}" "$@" ;;
esac
