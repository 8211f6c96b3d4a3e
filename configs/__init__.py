"""The recipes: one short file each, found by name with `--config=NAME`."""
