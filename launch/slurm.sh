#!/usr/bin/env bash
#SBATCH --job-name=bert_jax
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
# Pretrains on the nodes of a SLURM job, and has the job run again until the run is done.
set -euo pipefail

RESUME=75 # bert_jax/training/stopping.py

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'HELP'
sbatch [OPTIONS] launch/slurm.sh --workdir=DIR --config=NAME [--config.FIELD=VALUE ...]

To be submitted from the checkout, which all nodes see, with the package in .venv or in the
environment that is active. Runs python -m bert_jax.train --distributed with the arguments given, one
process a node, each with all GPUs of its node:

    sbatch --nodes=2 --gpus-per-node=4 --cpus-per-task=32 --time=24:00:00 launch/slurm.sh \
        --config=base_fast --config.data.dir=data/books --workdir=runs/books

Five minutes before its time is up, SLURM tells the run, which saves; the job is queued again and goes
on from there. So it is where a process was lost, if there has been a new checkpoint. scancel ends it
for good; then the same sbatch goes on. Options given to sbatch override the #SBATCH lines:
--signal=TERM@900 where saving takes longer.
HELP
  exit
fi

# Of its own: SLURM runs a copy of this file, far from environment.sh.
say() { echo "bert_jax: $*" >&2; }
fail() {
  say "$*"
  exit 2
}

[[ -n ${SLURM_JOB_ID:-} ]] || fail "submit it: sbatch [OPTIONS] launch/slurm.sh (see --help)"
workdir=
for argument in "$@"; do
  if [[ $argument == --workdir=* ]]; then workdir=${argument#--workdir=}; fi
done
[[ -n $workdir ]] || fail "give --workdir=DIR (see bash launch/slurm.sh --help)"

# Not this file's folder: the copy runs in the folder that the job was submitted from.
python=$PWD/.venv/bin/python
if [[ ! -x $python ]]; then python=python; fi

checkpoints() { find "$workdir/checkpoints" -maxdepth 1 2>/dev/null | sort || true; }

# Where a process is lost the others notice, save what they can and end with $RESUME, for which SLURM
# would not leave them time. Some versions of srun do not take the cores of a task from the job.
options=(--kill-on-bad-exit=0)
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK"); fi
export PYTHONUNBUFFERED=1
before=$(checkpoints)
code=0
srun "${options[@]}" "$python" -m bert_jax.train --distributed "$@" || code=$?
if ((code > 128)); then code=$RESUME; fi # one was killed
if ((code != RESUME)); then exit "$code"; fi
if [[ $(checkpoints) == "$before" ]]; then
  say "no new checkpoint since this start: not queued again"
  exit "$RESUME"
fi
say "to be queued again, unless it was cancelled"
scontrol requeue Incomplete "$SLURM_JOB_ID" # Incomplete: not where scancel ends it
exit "$RESUME"
