"""What the forward pass keeps for the backward pass: bytes by layer, after transformers 5.24's modules.

A multiplication keeps the factors that the other one's gradient needs, a linear layer its input, an attention kernel
its queries, keys, values, output and one fp32 number a row. A tensor that two operations keep counts once.
"""

from __future__ import annotations

from .run import Run
from .shapes import Shapes


def norm_bytes(run: Run) -> int:
    """One normalisation of [tokens, hidden], its output included (the next linear layer keeps that).

    RMS norm in steps (modeling_llama.py, LlamaRMSNorm): the fp32 input, the normalised value, the output. Under fp32
    the input is no copy but kept all the same. nn.LayerNorm and Liger's norm: the input and the output.
    """
    each, elements = run.bytes_each, run.tokens * run.local.hidden
    if run.local.rms and not run.fused_kernels:
        return elements * (4 + 2 * each)
    return elements * 2 * each


def head_norm_bytes(run: Run) -> int:
    """Norms of queries and keys over the head size (qwen3, gemma3)."""
    if not run.local.head_norms:
        return 0
    width = (run.local.heads + run.local.kv_heads) * run.local.head_dim
    return run.tokens * width * (4 + run.bytes_each if not run.fused_kernels else run.bytes_each)


def attention_bytes(run: Run) -> int:
    """Queries, keys, values and the output, which the output projection keeps too; plus what the kernel keeps.

    sdpa with a mask repeats keys and values for every query head (sdpa_attention.py, use_gqa_in_sdpa). eager keeps
    the scores after softmax and after dropout: two [rows, heads, seq, seq]. flash and sdpa keep fp32 [heads, seq].
    """
    shapes, each = run.local, run.bytes_each
    query, key = shapes.heads * shapes.head_dim, shapes.kv_heads * shapes.head_dim
    repeated = run.attn == "eager" or run.masked
    kept = 2 * query + 2 * (query if repeated else key)
    total = run.tokens * kept * each
    if run.attn == "eager":
        return total + 2 * run.tokens * run.seq * shapes.heads * each
    return total + run.tokens * shapes.heads * 4


def mask_bytes(run: Run) -> int:
    """The kernel's copy of the block mask, [rows, 1, seq, seq] in the model's type, kept by every layer's sdpa."""
    return run.tokens * run.seq * run.bytes_each if run.masked else 0


def feed_forward_bytes(run: Run, width: int) -> int:
    """Gated: gate, activated gate, up and their product; Liger's SwiGLU recomputes the activated gate. Else: in, out."""
    tensors = (3 if run.fused_kernels else 4) if run.local.gated else 2
    return run.tokens * width * tensors * run.bytes_each


def experts_bytes(run: Run) -> int:
    """Every token goes through the active experts (a copy of it for each), and the shared one; router scores in fp32."""
    shapes = run.local
    copies = shapes.active_experts * run.tokens * shapes.hidden * run.bytes_each
    routed = shapes.active_experts * feed_forward_bytes(run, shapes.moe_ffn)
    outputs = shapes.active_experts * run.tokens * shapes.hidden * run.bytes_each
    return copies + routed + outputs + feed_forward_bytes(run, shapes.shared_ffn) + run.tokens * run.shapes.experts * 8


def adapter_bytes(run: Run) -> int:
    """LoRA keeps A's output [tokens, r] and a scaled copy of the input for each adapted matrix, in fp32."""
    block = max(run.local.blocks, key=lambda one: one.numel)
    ranks = [p for p in block.params if "lora_A" in p.name]
    return sum(run.tokens * (param.shape[0] + param.shape[1]) * 4 for param in ranks)


def layer_bytes(run: Run, sparse: bool = False) -> int:
    """All that one layer keeps."""
    shapes = run.local
    inner = experts_bytes(run) if sparse else feed_forward_bytes(run, shapes.ffn)
    total = shapes.norms * norm_bytes(run) + head_norm_bytes(run) + attention_bytes(run) + mask_bytes(run)
    return total + inner + adapter_bytes(run)


def _cross_bytes(run: Run) -> int:
    """A T5 decoder layer attends a second time, to the encoder's output."""
    return attention_bytes(run) + norm_bytes(run)


def activation_bytes(run: Run) -> int:
    """Kept at the end of the forward pass, the last norm included, without the logits.

    Recompute: each layer's input only, [tokens, hidden].
    """
    shapes = run.local
    dense = shapes.layers - shapes.sparse_layers
    if run.recompute:
        return shapes.layers * run.tokens * shapes.hidden * run.bytes_each + norm_bytes(run)
    cross = (shapes.layers - shapes.encoder_layers) * _cross_bytes(run) if shapes.encoder_layers else 0
    return dense * layer_bytes(run) + shapes.sparse_layers * layer_bytes(run, True) + cross + norm_bytes(run)


def recomputed_layer_bytes(run: Run) -> int:
    """The one layer that recompute holds whole while its backward pass runs."""
    return _largest_layer(run) if run.recompute else 0


def backward_working_bytes(run: Run) -> int:
    """Gradients in flight inside one layer: of the product, gate and up, and of its input and residual."""
    shapes: Shapes = run.local
    width = max(shapes.ffn, shapes.moe_ffn * shapes.active_experts)
    return run.tokens * ((3 if shapes.gated else 2) * width + 2 * shapes.hidden) * run.bytes_each


def _largest_layer(run: Run) -> int:
    cross = _cross_bytes(run) if run.local.encoder_layers else 0
    return layer_bytes(run, bool(run.local.sparse_layers)) + cross


def logits_bytes(run: Run) -> int:
    """Peak of the loss: [tokens, vocab] in fp32 three times (loss_utils.py, ForCausalLMLoss).

    At the start of the backward pass: log-softmax's output, the loss's gradient, and log-softmax's gradient. The
    forward pass holds less: the logits, their fp32 copy, log-softmax. Fused: the gradients of the last hidden states
    and of the output matrix, which Liger computes at once in chunks of tokens.
    """
    shapes = run.local
    if run.fused_loss:
        chunk = max(1, run.tokens // max(1, -(-shapes.vocab // shapes.hidden)))
        return (run.tokens + shapes.vocab) * shapes.hidden * run.bytes_each + 3 * chunk * shapes.vocab * 4
    return 3 * run.tokens * shapes.vocab * 4


def first_gradient_bytes(run: Run) -> int:
    """When the output matrix has its gradient: that, and the gradient of the logits [tokens, vocab], or with a fused
    loss of the last hidden states [tokens, hidden]."""
    shapes = run.local
    width = shapes.hidden if run.fused_loss else shapes.vocab
    return (run.tokens * width + shapes.vocab * shapes.hidden) * run.bytes_each


def evaluation_logits_bytes(run: Run, chunk: int = 1024) -> int:
    """Logits of one batch, and of `chunk` positions in fp32 twice (training/trainer.py, row_loss_sums)."""
    positions = min(chunk, run.seq)
    return run.tokens * run.local.vocab * run.bytes_each + 2 * positions * run.local.vocab * 4
