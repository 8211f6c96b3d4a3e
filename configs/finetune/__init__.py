"""Recipes of fine-tuning, a file each: `get_config()` returns a `FinetuneConfig`."""
