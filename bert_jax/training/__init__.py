"""Losses, optimizer, train state, steps, sharding, checkpoints and metrics."""
