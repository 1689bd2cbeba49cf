"""A transformers model without storage, whose parameters say where in the files their values lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, initialization
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig, PreTrainedModel, set_zero3_state
from transformers.models.auto.auto_factory import _get_model_class
from transformers.monkey_patching import patch_output_recorders
from transformers.utils import logging

from zerotune.errors import UsageError
from zerotune.loading import lazy_tensor
from zerotune.loading.extents import Stored


def class_for(config, model_class=None) -> type[PreTrainedModel]:
    """The model class: `model_class` itself, or what an Auto class takes for this config.

    Raises:
        UsageError: the Auto class has no model of this type.
    """
    wanted = model_class or AutoModelForCausalLM
    if not hasattr(wanted, "_model_mapping"):
        return wanted
    try:
        return _get_model_class(config, wanted._model_mapping)
    except KeyError:
        raise UsageError(
            f"{config.model_type}: {wanted.__name__} has no model of this type. Pass another one as model_class: "
            "AutoModelForCausalLM, AutoModelForSeq2SeqLM, ..."
        ) from None


def build(model_class: type[PreTrainedModel], config, dtype: torch.dtype) -> PreTrainedModel:
    """The model on the meta device: shapes and types as from_pretrained builds them, no memory.

    Returns:
        The model, untied; non-persistent buffers are still to be computed.
    """
    config.dtype = dtype
    for name in config.sub_configs:
        if (one := getattr(config, name)) is not None:
            one.dtype = dtype
    with contextlib.ExitStack() as stack:
        # The flag keeps transformers from entering zero.Init here and in models inside the model.
        for context in model_class.get_init_context(dtype, False, True, None):
            stack.enter_context(context)
        for context in (set_zero3_state(), torch.device("meta"), initialization.meta_device_safe_creation_ops()):
            stack.enter_context(context)
        model = model_class(config)
        patch_output_recorders(model)
    return model


def attach(
    model: PreTrainedModel, tensors: dict[str, Stored], dtype: torch.dtype, keep_in_fp32: bool, compare: Callable
):
    """Put a LazyTensor in the place of every weight that the files hold, renamed and converted as transformers does.

    Args:
        keep_in_fp32: honour the modules that the model wants in fp32 (zero.Init has one type for all parameters).
        compare: are two lazy tensors equal? Asked for weights that should be one and are stored twice.

    Returns:
        transformers' loading info: missing, unexpected and mismatched keys, conversion errors. Weights are tied.
    """
    lazy = {name: lazy_tensor.stored(tensor) for name, tensor in tensors.items()}
    load_config = LoadStateDictConfig(
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype) if keep_in_fp32 else {},
        weight_mapping=get_model_conversion_mapping(model),
    )
    traits = {name: (one.requires_grad, one.__dict__) for name, one in model.named_parameters()}
    with _no_progress_bar():
        info, _ = convert_and_load_state_dict_in_model(model, lazy, load_config)
    for name, one in model.named_parameters():
        requires_grad, attributes = traits[name]
        one.requires_grad_(requires_grad)
        one.__dict__.update({key: value for key, value in attributes.items() if key not in one.__dict__})
    model.mark_tied_weights_as_initialized(info)
    with lazy_tensor.comparing(compare):
        model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(info)
    return info


@contextlib.contextmanager
def _no_progress_bar():
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
