"""The model and its tokenizer: pretrained, or built with random weights; partitioned while built under stage 3."""

from __future__ import annotations

import math
from pathlib import Path

from zerotune.errors import UsageError, nearest
from zerotune.preflight import named_files
from zerotune.training import defaults, ranks
from zerotune.training.arguments import Arguments, ModelArguments
from zerotune.training.data import corpus

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
# Tokens that models ship for padding, in the order in which one of them is taken.
PAD_LIKE = ("<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|padding|>", "<|pad|>", "<|endoftext|>")


def tokenizer(args: Arguments):
    """Load the tokenizer, or train and cache one on the built-in corpus; it always has a pad token afterwards."""
    from transformers import AutoTokenizer

    name = args.model.tokenizer_name or args.model.model_name_or_path or _config_folder(args.model)
    if name is None:
        return _own_tokenizer(args.data.vocab_size)
    named_files.require_model("--tokenizer_name" if args.model.tokenizer_name else "--model_name_or_path", name)
    try:
        made = AutoTokenizer.from_pretrained(
            name, revision=args.model.model_revision, trust_remote_code=args.model.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(_not_loaded(name, "tokenizer", error)) from error
    ensure_pad_token(made)
    return made


def _config_folder(args: ModelArguments) -> str | None:
    """A --config_name folder that also holds a tokenizer."""
    if args.config_name and (Path(args.config_name) / "tokenizer_config.json").is_file():
        return args.config_name
    return None


def _own_tokenizer(vocab_size: int):
    from transformers import AutoTokenizer

    folder = corpus.cache_dir() / f"stdlib_bpe_{vocab_size}"
    with ranks.first_of_node():
        if not (folder / "tokenizer.json").is_file():
            ranks.say(f"training a byte-level BPE tokenizer of {vocab_size} tokens on the standard library (once)")
            made = corpus.train_tokenizer((row["text"] for row in corpus.texts("train")), vocab_size)
            made.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def ensure_pad_token(made) -> None:
    """Reuse a token for padding where one can be (labels are masked by position, so it may be the end token)."""
    if made.pad_token is not None:
        return
    vocabulary = made.get_vocab()
    reusable = next((token for token in PAD_LIKE if token in vocabulary), None) or made.unk_token or made.eos_token
    if reusable is not None:
        made.pad_token = reusable
    else:
        made.add_special_tokens({"pad_token": "<pad>"})


def ensure_chat_template(made) -> None:
    """Give a tokenizer without chat template the ChatML one, with its two tokens."""
    if made.chat_template is None:
        made.chat_template = corpus.CHATML
        made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})


def config(args: Arguments, vocab_size: int, tokens: dict):
    """The model's config: the pretrained one's, the user's, or a Llama whose size suits the machine.

    Args:
        vocab_size: tokens in the tokenizer.
        tokens: bos, eos and pad token ids for a new config.
    """
    from transformers import AutoConfig

    name = args.model.model_name_or_path or args.model.config_name
    if name is None:
        made = _small_llama(defaults.scratch_size(defaults.device_gib()), vocab_size, tokens)
    else:
        try:
            made = AutoConfig.from_pretrained(
                name, revision=args.model.model_revision, trust_remote_code=args.model.trust_remote_code
            )
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(_not_loaded(name, "model config", error)) from error
    if getattr(made, "quantization_config", None) is not None and args.model.model_name_or_path:
        raise UsageError(
            f"{name} holds quantized weights (quantization_config in its config.json), which cannot be fine-tuned "
            "whole. Take the model's unquantized folder."
        )
    if args.model.config_overrides:
        _override(made, args.model.config_overrides)
    return made


def class_of(config):
    """The model class that AutoModelForCausalLM would take; None for code that comes with a hub model.

    Raises:
        UsageError: no causal language model of this type.
    """
    from transformers import AutoModelForCausalLM

    if hasattr(config, "auto_map"):
        return None
    try:
        return AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError as error:
        raise UsageError(f"{config.model_type}: transformers has no causal language model of this type.") from error


def _small_llama(size: defaults.ScratchSize, vocab_size: int, tokens: dict):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=math.ceil(vocab_size / 64) * 64,
        hidden_size=size.hidden_size,
        intermediate_size=math.ceil(size.hidden_size * 8 / 3 / 64) * 64,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_heads,
        max_position_embeddings=max(2048, size.max_seq_length),
        tie_word_embeddings=True,
        **tokens,
    )


def _override(made, text: str) -> None:
    known = [name for name in (*made.to_dict(), *made.attribute_map) if not name.startswith("_")]
    for pair in text.split(","):
        key, found, value = (part.strip() for part in pair.partition("="))
        if not found or key not in known:
            close = nearest(key, known)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise UsageError(f"--config_overrides {pair.strip()!r}: no such value in a {made.model_type} config.{hint}")
        old = getattr(made, key)
        if not isinstance(old, bool | int | float | str | None):
            raise UsageError(
                f"--config_overrides {key}: a {type(old).__name__} cannot be given here. Use --config_name."
            )
        try:
            made_value = (
                value.lower() == "true"
                if isinstance(old, bool)
                else type(old)(value)
                if old is not None
                else int(value)
            )
        except ValueError as error:
            raise UsageError(f"--config_overrides {key}: {value!r} is no {type(old).__name__}.") from error
        setattr(made, key, made_value)


def check_folder(args: ModelArguments) -> None:
    """Refuse a --model_name_or_path folder that cannot hold a pretrained model, before anything is read from it.

    Raises:
        UsageError: no such folder, or one without config.json or weights; what it holds is listed.
    """
    name = args.model_name_or_path
    if name is None:
        return
    named_files.require_model("--model_name_or_path", name)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} holds no config.json, so it is no model folder. It holds: {_listing(folder)}.")
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        raise UsageError(
            f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}). It holds: {_listing(folder)}. "
            "To train it from scratch use --config_name."
        )


def _not_loaded(name: str, what: str, error: Exception) -> str:
    """Why a folder or hub name gives no tokenizer or config, and what to do; for a hub name all of it may be missing."""
    reason = _first_line(error).rstrip(".")
    other = " Give --tokenizer_name." if what == "tokenizer" else ""
    if Path(name).expanduser().is_dir():
        return f"{name}: no usable {what}: {reason}.{other}"
    return (
        f"{name}: no such folder here, and its {what} did not come from the hub: {reason}. "
        "Check the name and the network, or name a local model folder."
    )


def _listing(folder: Path, most: int = 8) -> str:
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def build(args: Arguments, made_config, training_args, vocab_size: int):
    """Build the model. Under stage 3 every parameter is partitioned over the ranks as it is made.

    Args:
        training_args: TrainingArguments, alive: transformers finds the ZeRO-3 config through it.
        vocab_size: tokens in the tokenizer; the embedding grows to it when it has fewer rows.

    Returns:
        The model with fp32 weights unless the run is in bf16 or fp16.
    """
    import torch
    from transformers import AutoModelForCausalLM, set_seed

    set_seed(training_args.seed)
    dtype = torch.bfloat16 if training_args.bf16 else torch.float16 if training_args.fp16 else torch.float32
    options = {
        "dtype": dtype,
        "attn_implementation": args.model.attn,
        "trust_remote_code": args.model.trust_remote_code,
    }
    try:
        if args.model.model_name_or_path:
            made = _pretrained(args.model, made_config, options)
        else:
            made = AutoModelForCausalLM.from_config(made_config, **options)
    except (OSError, ValueError) as error:
        raise UsageError(f"the model cannot be built: {_first_line(error)}") from error
    if vocab_size > made.config.get_text_config().vocab_size:
        made.resize_token_embeddings(vocab_size, pad_to_multiple_of=64)
    made.config.use_cache = False
    made.config.architectures = [type(made).__name__]  # save_pretrained would say it; a config from scratch does not
    return made


def _pretrained(args: ModelArguments, made_config, options: dict):
    """Every rank reads its own part of the weights, straight from the files."""
    from zerotune.loading import load_pretrained

    made = load_pretrained(
        args.model_name_or_path,
        config=made_config,
        revision=args.model_revision,
        allow_keys=[args.allow_keys] if args.allow_keys else [],
        allow_pickle=args.allow_pickle,
        **options,
    )
    if report := getattr(made, "load_report", None):
        ranks.say(
            f"weights: {report.bytes_read / 1e9:,.2f} GB read on this rank in {report.seconds:.1f} s "
            f"({report.files_opened} file(s)), {report.compared} values compared with the files"
        )
    return made


def parameters(model) -> int:
    """Number of parameters, partitioned ones counted whole."""
    return sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters())
