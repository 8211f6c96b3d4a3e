"""What a run needs on a machine that nobody has paid for yet."""
