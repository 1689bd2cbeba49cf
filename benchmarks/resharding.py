"""Memory and time of a resume on other ranks: `python -m benchmarks.resharding [--hidden 1024 --layers 20]`.

A model is trained for one step on one rank at stage 2, saved, and resumed on 2 ranks at stage 3 with everything
offloaded. Printed for each rank: its own memory (USS) before, at the peak of, and after the load, beside the bytes of
its partition of the moments, which the engine does not have before.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from tests.engine import forked_ranks, reshard_run

MIB = 2**20
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}


def save(folder: str, sizes: dict) -> float:
    """Train one step and save; returns millions of parameters."""
    engine = reshard_run.engine("stage2_offload", "bf16", ADAMW, **sizes)
    reshard_run.train(engine, range(1))
    engine.save_checkpoint(folder)
    return sum(param.numel() for param in engine.module.parameters()) / 1e6


def measured(folder: str, sizes: dict) -> dict[str, float]:
    """Resume; USS in MiB before, at the peak, and after, MiB of this rank's moments, and seconds."""
    import psutil

    from zerotune.checkpointing.resharding import layout
    from zerotune.checkpointing.resharding.load import load

    engine = reshard_run.engine("stage3_offload", "bf16", ADAMW, **sizes)
    process, samples, over = psutil.Process(), [], threading.Event()

    def watch():
        while not over.is_set():
            samples.append(process.memory_full_info().uss)
            time.sleep(0.02)

    before = process.memory_full_info().uss
    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    load(engine, Path(folder), lambda _: None)
    seconds = time.perf_counter() - started
    over.set()
    watcher.join()
    moments = 2 * sum(part.vector.numel() * 4 for part in layout.parts(engine))
    after = process.memory_full_info().uss
    found = {"before": before, "peak": max(samples), "after": after, "moments": moments}
    return {key: value / MIB for key, value in found.items()} | {"seconds": seconds, "samples": len(samples)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=20)
    args = parser.parse_args()
    sizes = {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden, "num_hidden_layers": args.layers}
    sizes |= {"num_attention_heads": 16, "num_key_value_heads": 16}
    with tempfile.TemporaryDirectory() as folder:
        millions = forked_ranks.run(save, 1, folder, sizes)[0]
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(f"{millions:,.0f} M parameters, checkpoint {size / MIB:,.0f} MiB")
        for rank, row in enumerate(forked_ranks.run(measured, 2, folder, sizes)):
            beside = row["peak"] - row["before"] - row["moments"]
            figures = ", ".join(f"{key} {value:,.1f}" for key, value in row.items())
            print(f"rank {rank}, MiB: {figures}; peak - before - moments {beside:,.1f}")


if __name__ == "__main__":
    main()
