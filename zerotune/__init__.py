"""Fine-tune language models with DeepSpeed ZeRO and the Hugging Face Trainer."""

__version__ = "0.1.0"
