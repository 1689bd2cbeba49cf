"""Numbers out of a config.json that may be incomplete or absurd."""

from __future__ import annotations

from zerotune.errors import UsageError, nearest

# No published model comes near: beyond them a number is a slip, and the plan would be nonsense.
LARGEST = {"vocab_size": 10**7, "hidden": 10**6, "layers": 10**4}


class ConfigValues:
    """Reads a config.json's dict.

    Raises (every reader):
        UsageError: the key is missing or is no positive whole number; it names the model and the nearest key.
    """

    def __init__(self, config: dict, name: str):
        self.config, self.name = config, name

    def size(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there, else the default, as a positive int."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        if value is None:
            close = nearest(keys[0], self.config, 1, 0.75)
            hint = f"; it has {close[0]!r}" if close else ""
            raise UsageError(f"{self.name}: its config.json has no {keys[0]!r}{hint}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or not 0 < value < 1e8:
            raise UsageError(f"{self.name}: {keys[0]} is {value!r} in its config.json, which must be a count above 0")
        return int(value)

    def count(self, key: str, default: int = 0) -> int:
        """Like size(), but 0 is allowed."""
        return 0 if self.config.get(key, default) in (0, None) else self.size(key, default=default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    def listed(self, key: str) -> list:
        return self.config.get(key) or []

    def heads(self) -> tuple[int, int]:
        """Heads of queries and of keys, which must divide each other."""
        heads = self.size("num_attention_heads")
        kv_heads = self.size("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise UsageError(
                f"{self.name}: {heads} attention heads cannot share {kv_heads} key-value heads: "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )
        return heads, kv_heads

    def head_dim(self, hidden: int, heads: int, default: int | None = None) -> int:
        """Given, else the default, else hidden / heads."""
        given = self.config.get("head_dim")
        if given is not None or default is not None:
            return self.size("head_dim", default=default)
        if hidden % heads:
            raise UsageError(f"{self.name}: hidden_size {hidden} is no multiple of its {heads} heads")
        return hidden // heads
