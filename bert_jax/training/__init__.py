"""Losses, optimizer, state, steps, sharding, checkpoints and metrics of a training run."""
