"""From text to batches: corpora, tokenizers, token shards, sentence pairs and masks."""
