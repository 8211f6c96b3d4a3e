"""Tasks of fine-tuning: a file each, and what they share."""
