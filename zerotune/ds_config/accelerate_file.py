"""accelerate's own file as a DeepSpeed config: the dict that its DeepSpeedPlugin hands to the engine.

accelerate 1.15: commands/config/config_args.py reads the file, commands/launch.py:1263 and utils/launch.py:565 turn it
into environment variables, utils/dataclasses.py:1226 builds the dict and :1410 adds the precision. Every value goes
through a text on its way. tests/training/test_accelerate_file.py holds this against the real ones.
"""

from __future__ import annotations

from contextlib import suppress

from .accelerate_keys import (
    DEEPSPEED_KEYS,
    DISTRIBUTED_TYPES,
    LISTED_TWICE,
    MULTINODE_LAUNCHERS,
    PRECISIONS,
    TOP_KEYS,
    nearest_key,
)
from .document import Document, Place, Problem, join

YES, NO = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")
# Where a value of the dict comes from; what is left out has its nearest parent's place.
ORIGINS = {
    "": "/deepspeed_config",
    "/zero_optimization": "/deepspeed_config",
    "/zero_optimization/stage": "/deepspeed_config/zero_stage",
    "/zero_optimization/offload_optimizer": "/deepspeed_config/offload_optimizer_device",
    "/zero_optimization/offload_optimizer/device": "/deepspeed_config/offload_optimizer_device",
    "/zero_optimization/offload_optimizer/nvme_path": "/deepspeed_config/offload_optimizer_nvme_path",
    "/zero_optimization/offload_param": "/deepspeed_config/offload_param_device",
    "/zero_optimization/offload_param/device": "/deepspeed_config/offload_param_device",
    "/zero_optimization/offload_param/nvme_path": "/deepspeed_config/offload_param_nvme_path",
    "/zero_optimization/stage3_gather_16bit_weights_on_model_save": "/deepspeed_config/zero3_save_16bit_model",
    "/gradient_accumulation_steps": "/deepspeed_config/gradient_accumulation_steps",
    "/gradient_clipping": "/deepspeed_config/gradient_clipping",
    "/fp16": "/mixed_precision",
    "/bf16": "/mixed_precision",
}


def is_accelerate(value: object) -> bool:
    """Whether a YAML file's data is a file of `accelerate config`."""
    return isinstance(value, dict) and ("deepspeed_config" in value or "distributed_type" in value)


def as_deepspeed(document: Document) -> Document:
    """The same text with the engine's dict as its value; facts of the launch and problems go with it.

    What nobody wrote is left out of the value: steps_per_print, which accelerate always overwrites, and the switch for
    whole checkpoints, whose false is DeepSpeed's default.
    """
    file = _File(document)
    file.judge_top()
    file.judge_keys()
    document.launch = file.launch()
    if document.launch.get("config_file") is None:
        document.value = {name: value for name, value in file.engine_dict().items() if name != "steps_per_print"}
        if file.block.get("zero3_save_16bit_model") is None:
            del document.value["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]
        if document.value["zero_optimization"]["stage"] == 3:  # elsewhere accelerate switches it off
            document.launch["zero_init"] = file.flag("zero3_init_flag")
        document.places = file.places()
    return document


class _File:
    def __init__(self, document: Document):
        self.document = document
        self.top: dict = document.value
        block = self.top.get("deepspeed_config")
        self.block: dict = block if isinstance(block, dict) else {}

    def judge_top(self) -> None:
        """What `accelerate launch` refuses before it looks at DeepSpeed."""
        for name in self.top:
            if name not in TOP_KEYS:
                under = name in DEEPSPEED_KEYS
                todo = "it belongs under deepspeed_config" if under else nearest_key(name, TOP_KEYS)
                self.report("accelerate-unknown-key", join("", name), f"accelerate refuses the key {name}", todo, True)
        kind = self.top.get("distributed_type")
        if "distributed_type" not in self.top:
            self.report(
                "accelerate-value", "", "distributed_type is missing", "write distributed_type: DEEPSPEED", True
            )
        elif kind not in DISTRIBUTED_TYPES:
            self.wrong("/distributed_type", "DEEPSPEED")
        elif kind != "DEEPSPEED":
            what = "nothing of deepspeed_config is read" if self.block else "this run is without DeepSpeed"
            what = f"distributed_type is {kind}: {what}"
            self.report("accelerate-not-deepspeed", "/distributed_type", what, "write distributed_type: DEEPSPEED")
        if not isinstance(self.top.get("deepspeed_config", {}), (dict, type(None))):
            self.wrong("/deepspeed_config", "keys and values under it")
        for name in ("num_processes", "num_machines"):
            value = self.top.get(name)
            if value not in (None, -1) and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                self.wrong(join("", name), "a whole number, at least 1")
        launcher = self.block.get("deepspeed_multinode_launcher")
        if (
            launcher is not None
            and launcher not in MULTINODE_LAUNCHERS
            and self.top.get("num_machines") not in (None, 1)
        ):
            self.wrong("/deepspeed_config/deepspeed_multinode_launcher", f"one of {', '.join(MULTINODE_LAUNCHERS)}")

    def judge_keys(self) -> None:
        """Each key of deepspeed_config becomes an attribute that something reads, or nothing."""
        named = self.config_file() is not None
        for name in self.block:
            here = join("/deepspeed_config", name)
            if name not in DEEPSPEED_KEYS and name not in TOP_KEYS:
                todo = nearest_key(name, DEEPSPEED_KEYS)
                self.report("accelerate-ignored-key", here, f"accelerate ignores {name} without a word", todo, True)
            if named and name in LISTED_TWICE:
                self.twice(here, name)
        precision = self.precision()
        if named and self.top.get("mixed_precision") is not None:
            self.twice("/mixed_precision", "mixed_precision")
        if precision is None and not named:
            self.wrong("/mixed_precision", f'one of {", ".join(PRECISIONS)}, with quotes around "no"')
        if self.block.get("zero3_init_flag") is not None and self.flag("zero3_init_flag") is None:
            self.wrong("/deepspeed_config/zero3_init_flag", "true or false")
        for which in ("optimizer", "param"):
            device, key = self.text(f"offload_{which}_device", "none").lower(), f"offload_{which}_nvme_path"
            if not named and device == "nvme":
                at = key if key in self.block else f"offload_{which}_device"
                what = f"accelerate launch does not pass on {key}: the swap files go to a folder called none"
                self.report("accelerate-nvme-path", f"/deepspeed_config/{at}", what, "use deepspeed_config_file", True)

    def twice(self, pointer: str, name: str) -> None:
        what = f"{name} stands beside deepspeed_config_file: accelerate refuses the pair"
        self.report("accelerate-two-sources", pointer, what, "keep it in the JSON file only", True)

    def config_file(self) -> str | None:
        name = self.block.get("deepspeed_config_file")
        return None if name is None or str(name) == "none" else str(name)

    def text(self, name: str, default: str) -> str:
        """A value as it comes out of the environment; the default where the file has none."""
        value = self.block.get(name)
        return default if value is None else str(value)

    def flag(self, name: str) -> bool | None:
        word = self.text(name, "").lower()
        return True if word in YES else False if word in NO else None

    def precision(self) -> str | None:
        """The mode that `accelerate launch` passes on; None for what it refuses. `no` without quotes is false in YAML."""
        value = self.top.get("mixed_precision")
        if value is None:
            return "fp16" if self.top.get("fp16") and "mixed_precision" not in self.top else "no"
        return value.lower() if isinstance(value, str) and value.lower() in PRECISIONS else None

    def number(self, name: str, read, default: object) -> object:
        """A number through its text; what can't be read is reported and left as it stands."""
        if self.block.get(name) is None:
            return default
        try:
            return read(str(self.block[name]))
        except (ValueError, OverflowError):
            self.wrong(f"/deepspeed_config/{name}", "a whole number" if read is int else "a number")
            return default

    def engine_dict(self) -> dict:
        """DeepSpeedPlugin.__post_init__ and set_mixed_precision."""
        steps = self.text("gradient_accumulation_steps", "auto")
        if steps == "auto" and self.block.get("gradient_accumulation_steps") is not None:
            what = "Accelerator() can't turn gradient_accumulation_steps auto into a number; the Trainer passes its own"
            here = "/deepspeed_config/gradient_accumulation_steps"
            self.report("accelerate-steps-auto", here, what, "write a number, or leave the key out")
        config: dict = {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": int(steps) if steps.isascii() and steps.isdigit() else steps,
            "zero_optimization": {
                "stage": self.number("zero_stage", int, 2),
                "offload_optimizer": self.offload("offload_optimizer_device"),
                "offload_param": self.offload("offload_param_device"),
                "stage3_gather_16bit_weights_on_model_save": self.text("zero3_save_16bit_model", "").lower() == "true",
            },
        }
        clipping = "auto"
        if self.text("gradient_clipping", "auto").lower() != "auto":
            clipping = self.number("gradient_clipping", float, "auto")
        if clipping:
            config["gradient_clipping"] = clipping
        else:
            what = "gradient_clipping 0 is left out by accelerate, and the engine then clips at 1.0"
            todo = "use deepspeed_config_file, with gradient_clipping 0 in the JSON"
            self.report("accelerate-clipping-zero", "/deepspeed_config/gradient_clipping", what, todo)
        config["steps_per_print"] = float("inf")
        precision = self.precision()
        fp16 = {"enabled": True, "auto_cast": True} if precision == "fp16" else {"enabled": False}
        return config | {"fp16": fp16, "bf16": {"enabled": precision in ("bf16", "fp8")}}

    def offload(self, name: str) -> dict:
        device = self.text(name, "none").lower()
        return {"device": device, "nvme_path": "none" if device == "nvme" else None}

    def launch(self) -> dict:
        """Facts of the run, for the context: only what the file says."""
        found: dict = {"config_file": self.config_file()}
        for name, key in (("world_size", "num_processes"), ("nodes", "num_machines")):
            value = self.top.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found[name] = value
        return found

    def places(self) -> dict[str, Place]:
        places = self.document.places
        return {ours: places[theirs] for ours, theirs in ORIGINS.items() if theirs in places}

    def wrong(self, pointer: str, wanted: str) -> None:
        value: object = self.top
        for part in pointer.split("/")[1:]:
            value = value.get(part) if isinstance(value, dict) else None
        what = f"{pointer.rpartition('/')[2]} is {str(value)[:60]!r}, which accelerate can't use"
        self.report("accelerate-value", pointer, what, f"write {wanted}")

    def report(self, code: str, pointer: str, message: str, help: str, at_key: bool = False) -> None:
        start = end = 0
        with suppress(TypeError):
            start, end = self.document.span(pointer, at_key)
        self.document.problems.append(Problem(code, start, max(end, start + 1), message, help))
