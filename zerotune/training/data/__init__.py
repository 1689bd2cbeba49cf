"""Raw examples -> token segments with labels -> packed blocks -> batches."""
