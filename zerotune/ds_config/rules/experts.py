"""ZT83x: mixture of experts: AutoEP, and what stage 3 gathers of it."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .key_advice import older
from .rule import Hit, case, rule

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
LEAF_TYPES = ("mixtral", "qwen2_moe", "qwen3_moe")  # runtime/zero/leaf_module_config.py
STAGE_3 = {"zero_optimization": {"stage": 3}}
MIXTRAL = {"model_type": "mixtral", "hidden_size": 64, "num_local_experts": 8}
DEEPSEEK = {"model_type": "deepseek_v3", "hidden_size": 64, "n_routed_experts": 8}


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


def has_experts(model: dict) -> bool:
    return any(name in model for name in EXPERT_COUNTS)


@rule(
    "ZT830",
    "load-balance-coeff",
    ERROR,
    keys=("expert_parallel.load_balance_coeff",),
    message="load_balance_coeff is refused, even when expert_parallel is off",
    help="delete it",
    source="deepspeed 0.19.8 module_inject/auto_ep_config.py",
    bad=[raw({"expert_parallel": {"enabled": False, "load_balance_coeff": 0.01}})],
    good=[raw({"expert_parallel": {"enabled": False}})],
)
def load_balance_coeff(view):
    """A ValueError in the parser (e057)."""
    if view.block("expert_parallel").get("load_balance_coeff") is not None:
        yield Hit("/expert_parallel/load_balance_coeff", at_key=True)


@rule(
    "ZT831",
    "autoep-without-moe",
    WARNING,
    keys=("expert_parallel.enabled",),
    message="expert_parallel is on, but the model has no experts",
    help="delete the block",
    source="deepspeed 0.19.8 runtime/engine.py",
    bad=[raw({"expert_parallel": {"enabled": True}}, model={"hidden_size": 64})],
    good=[raw({"expert_parallel": {"enabled": True}}, model={"hidden_size": 64, "num_local_experts": 8})],
)
def autoep_without_moe(view):
    """A warning in the log, and nothing else (e056)."""
    model = view.context.model
    if view.get("expert_parallel.enabled") is True and model is not None and not has_experts(model):
        yield Hit("/expert_parallel/enabled")


@rule(
    "ZT832",
    "moe-without-leaf-modules",
    WARNING,
    keys=("zero_optimization.leaf_module",),
    message="stage 3 gathers each expert of {model_type} by itself: ranks whose tokens take other experts wait forever",
    help="{todo}",
    source="https://github.com/deepspeedai/DeepSpeed/issues/7461, https://github.com/deepspeedai/DeepSpeed/pull/7604",
    bad=[
        case(STAGE_3, model=MIXTRAL, versions={"deepspeed": "0.17.6", "transformers": "4.57.0"}),
        case(STAGE_3, model=DEEPSEEK, versions={"deepspeed": "0.19.8", "transformers": "4.57.0"}),
    ],
    good=[
        case(STAGE_3, model=MIXTRAL, versions={"deepspeed": "0.19.8", "transformers": "4.57.0"}),
        case(STAGE_3, model=DEEPSEEK, versions={"deepspeed": "0.19.8", "transformers": "5.24.0"}),
    ],
)
def moe_without_leaf_modules(view):
    """A leaf module is gathered whole. Since 0.18.0 DeepSpeed knows the blocks of Mixtral, Qwen2-MoE and Qwen3-MoE by
    itself; since transformers 5 the experts of a layer are one tensor, and nothing can diverge."""
    model, transformers = view.context.model, view.context.versions.get("transformers")
    if view.stage != 3 or not model or not has_experts(model) or not older(transformers, "5.0.0"):
        return
    before_list = older(view.deepspeed, "0.18.0")
    if before_list or (model.get("model_type") not in LEAF_TYPES and not view.has("zero_optimization.leaf_module")):
        key = 'name its sparse block in "leaf_module": {"classes": [...]}'
        call = "call deepspeed.utils.set_z3_leaf_modules(model, [its sparse block's class]) in the program"
        yield Hit(
            "/zero_optimization", {"model_type": model.get("model_type"), "todo": call if before_list else key}, True
        )


@rule(
    "ZT833",
    "autoep-size",
    ERROR,
    keys=("expert_parallel.autoep_size",),
    message="autoep_size {value} does not divide {what}",
    help="write a common divisor of the number of experts and of the number of ranks",
    source="deepspeed 0.19.8 module_inject/auto_ep_config.py:369, auto_ep_folding.py:112",
    bad=[
        raw({"expert_parallel": {"enabled": True, "autoep_size": 3}}, world_size=8),
        raw({"expert_parallel": {"enabled": True, "autoep_size": 16}}, model=MIXTRAL),
    ],
    good=[raw({"expert_parallel": {"enabled": True, "autoep_size": 4}}, world_size=8, model=MIXTRAL)],
)
def autoep_size(view):
    """A ValueError when the engine is built: each rank owns the same number of experts."""
    size, world, model = view.get("expert_parallel.autoep_size"), view.context.world_size, view.context.model or {}
    if not view.enabled("expert_parallel") or not isinstance(size, int) or isinstance(size, bool) or size < 2:
        return
    experts = next((model[name] for name in EXPERT_COUNTS if isinstance(model.get(name), int)), None)
    for number, what in ((world, f"{world} ranks"), (experts, f"the model's {experts} experts")):
        if number and number % size:
            yield Hit("/expert_parallel/autoep_size", {"what": what})
            return
