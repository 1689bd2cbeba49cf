"""Model, data and Trainer for one fine-tuning job."""
