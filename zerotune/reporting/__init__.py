"""What a run shows while it runs: the progress bar, metrics.jsonl, Weights & Biases."""
