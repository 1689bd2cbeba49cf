"""Optimizers and schedulers by name, and the arguments that their constructors take.

tests/engine/test_constructors.py holds the tables against the installed torch and DeepSpeed.
"""

from __future__ import annotations

# runtime/config.py:60: these match in any case; every other name must be a class of torch.optim, exactly.
DEEPSPEED_NAMES = ("adam", "adamw", "adagrad", "lamb", "lion", "muon", "muadam", "muadamw", "musgd")
# Closures and sparse gradients: they can be built, but not stepped by the engine.
UNSTEPPABLE = {"LBFGS": "needs a closure in step()", "SparseAdam": "takes sparse gradients only"}
REMOVED_NAMES = ("onebitadam", "zerooneadam", "onebitlamb")
MU_NAMES = ("muadam", "muadamw", "musgd")

_TORCH = {"foreach", "maximize", "differentiable"}
# Constructor -> its arguments beside the weights.
ARGUMENTS: dict[str, set[str]] = {
    "FusedAdam": {"lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad", "set_grad_none"},
    "DeepSpeedCPUAdam": {"lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad"},
    "AdamW": {"lr", "betas", "eps", "weight_decay", "amsgrad", "capturable", "fused"} | _TORCH,
    "Adam": {"lr", "betas", "eps", "weight_decay", "amsgrad", "capturable", "fused", "decoupled_weight_decay"} | _TORCH,
    "Adagrad": {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "fused"} | _TORCH,
    "DeepSpeedCPUAdagrad": {"lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states"},
    "FusedLamb": {
        "lr", "bias_correction", "betas", "eps", "eps_inside_sqrt", "weight_decay", "max_coeff", "min_coeff", "amsgrad",
    },
    "FusedLion": {"lr", "betas", "weight_decay", "set_grad_none"},
    "DeepSpeedCPULion": {"lr", "betas", "weight_decay", "fp32_optimizer_states"},
    "SGD": {"lr", "momentum", "dampening", "weight_decay", "nesterov", "fused"} | _TORCH,
    "RMSprop": {"lr", "alpha", "eps", "weight_decay", "momentum", "centered", "capturable"} | _TORCH,
    "Adafactor": {"lr", "beta2_decay", "eps", "d", "weight_decay", "foreach", "maximize"},
    "Adadelta": {"lr", "rho", "eps", "weight_decay", "capturable"} | _TORCH,
    "Adamax": {"lr", "betas", "eps", "weight_decay", "capturable"} | _TORCH,
    "ASGD": {"lr", "lambd", "alpha", "t0", "weight_decay", "capturable"} | _TORCH,
    "NAdam": {"lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay", "capturable"} | _TORCH,
    "RAdam": {"lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "capturable"} | _TORCH,
    "Rprop": {"lr", "etas", "step_sizes", "capturable"} | _TORCH,
    "LBFGS": {
        "lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn",
    },
    "SparseAdam": {"lr", "betas", "eps", "maximize"},
}  # fmt: skip
TORCH_NAMES = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam")
TORCH_NAMES += ("RMSprop", "Rprop", "SGD", "SparseAdam")
# Taken out of the config before the constructor sees it (engine.py:2342).
ADAM_EXTRAS = {"torch_adam", "adam_w_mode", "fp32_optimizer_states"}
# Muon picks these and drops the rest without a word (engine.py:2405).
MUON_ARGUMENTS = {"lr", "momentum", "weight_decay", "ns_method", "betas", "eps", "muon_lr", "adam_lr"} | ADAM_EXTRAS
MUON_ARGUMENTS |= {"per_head_muon"}
# zero/utils.py:40; matched by exact class.
ZERO_TESTED = {"FusedAdam", "DeepSpeedCPUAdam", "ZenFlowCPUAdam", "AdamW", "Adam", "Adagrad", "DeepSpeedCPUAdagrad"}
ZERO_TESTED |= {"DeepSpeedCPULion", "FusedLion", "MuonWithAuxAdam"}

# Scheduler -> (arguments that must be given, the others).
SCHEDULERS: dict[str, tuple[set[str], set[str]]] = {
    "WarmupLR": (set(), {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"}),
    "WarmupDecayLR": (
        {"total_num_steps"},
        {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"},
    ),
    "WarmupCosineLR": (
        {"total_num_steps"},
        {"warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type", "last_batch_iteration"},
    ),
    "OneCycle": (
        {"cycle_min_lr", "cycle_max_lr"},
        {
            "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count",
            "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom",
            "decay_mom_rate", "last_batch_iteration",
        },
    ),
    "LRRangeTest": (
        set(),
        {
            "lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase",
            "last_batch_iteration",
        },
    ),
    "ConstantLR": (set(), {"factor", "total_iters", "last_epoch"}),
    "LinearLR": (set(), {"start_factor", "end_factor", "total_iters", "last_epoch"}),
    "CosineAnnealingLR": ({"T_max"}, {"eta_min", "last_epoch"}),
    "CosineAnnealingWarmRestarts": ({"T_0"}, {"T_mult", "eta_min", "last_epoch"}),
    "ExponentialLR": ({"gamma"}, {"last_epoch"}),
    "MultiStepLR": ({"milestones"}, {"gamma", "last_epoch"}),
    "PolynomialLR": (set(), {"total_iters", "power", "last_epoch"}),
    "StepLR": ({"step_size"}, {"gamma", "last_epoch"}),
}  # fmt: skip
# Known to torch, but their arguments are functions, other schedulers or alternatives of each other.
OTHER_SCHEDULERS = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau")
OTHER_SCHEDULERS += ("OneCycleLR", "CyclicLR")


def optimizer_kind(name: object) -> str | None:
    """ "deepspeed", "torch" or None for a name that no engine knows."""
    if not isinstance(name, str):
        return None
    if name.lower() in DEEPSPEED_NAMES:
        return "deepspeed"
    return "torch" if name in TORCH_NAMES else None


def constructor(name: str, params: dict, on_cpu: bool) -> str | None:
    """The class that the engine builds (engine.py:2452). on_cpu: offload_optimizer has a device."""
    lower = name.lower()
    if lower in ("adam", "adamw"):
        if params.get("torch_adam"):
            return "AdamW" if lower == "adamw" or params.get("adam_w_mode", True) else "Adam"
        return "DeepSpeedCPUAdam" if on_cpu else "FusedAdam"
    both = {"adagrad": ("Adagrad", "DeepSpeedCPUAdagrad"), "lion": ("FusedLion", "DeepSpeedCPULion")}
    if lower in both:
        return both[lower][on_cpu]
    if lower in ("lamb", "muon"):
        return {"lamb": "FusedLamb", "muon": "MuonWithAuxAdam"}[lower]
    return name if name in TORCH_NAMES else None
