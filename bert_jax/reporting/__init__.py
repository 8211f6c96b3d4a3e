"""What a fine-tuning run's predictions show, told from the shape of the predictions alone."""
