"""What a trained model says of text that people give: the commands of `predict`, one file each."""
