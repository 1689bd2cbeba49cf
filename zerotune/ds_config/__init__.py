"""What a DeepSpeed config means: parse -> schema -> rules -> findings. Loads no torch and no deepspeed.

from zerotune.ds_config import Context, check, render, resolve
config = resolve("stage3_offload")
print(render.text(check(config, Context(world_size=8)), config.name, config.text))
"""

from . import render
from .checking import check, has_errors
from .context import Context
from .finding import Finding, Fix
from .resolve import ResolvedConfig, resolve, template_names

__all__ = ["Context", "Finding", "Fix", "ResolvedConfig", "check", "has_errors", "render", "resolve", "template_names"]
