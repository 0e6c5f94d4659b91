"""A decoder layer from its attention to the next one's, in one call for each thread.

Products are dealt out by columns and what stands between them by rows, and the threads meet after each: a wait of less
than a microsecond, where handing over to another thread from Python takes fifty, ten times a layer.

A product's arguments come as one tuple: (packed, offsets, scales, bias), see `product.pack`; scales and bias are fp32,
one a column. A buffer of codes comes as (codes [num_rows, size] uint8, scales [num_rows] fp32).
"""

from __future__ import annotations

from kernels.cpu.int8 import add_norm_quantize, dequantize, embed, head_quantize, norm_quantize, quantize, silu_quantize
from kernels.cpu.jit import fast
from kernels.cpu.product import multiply
from kernels.cpu.vnni import LANES, PANELS, meet


@fast
def begin(thread, num_threads, counter, tokens, table, residual, eps, normed, qkv, to_qkv, heads):
    """From token ids to `heads` [num_rows, columns of qkv] fp32, the first layer's queries, keys and values.

    Args:
        thread: which one this is.
        num_threads: of them.
        counter: [1] int64, 0 at the start.
        tokens: [num_rows] int64.
        table: the embedding, like a product.
        residual: [num_rows, hidden_size] fp32, written.
        eps: of RMSNorm.
        normed: buffer of codes.
        qkv: product.
        to_qkv: [num_rows, columns of qkv in full panels] int32, overwritten; likewise to_hidden and to_inner.
        heads: see above.
    """
    first, last = _share(len(tokens), thread, num_threads)
    embed(first, last, tokens, table[0], table[2], residual)
    norm_quantize(first, last, residual, eps, normed[0], normed[1])
    meet(counter, num_threads)
    _multiply_out(thread, num_threads, normed, qkv, to_qkv, heads)


@fast
def advance(
    thread,
    num_threads,
    counter,
    attention,  # [num_rows, heads] floats as `numerics` takes them
    residual,  # [num_rows, hidden_size] fp32, updated
    eps,
    width,  # channels of a rotation before `down`
    attended,  # buffers of codes
    normed,
    inner,
    o,  # products
    gate_up,
    down,
    qkv,  # of the next layer
    to_hidden,
    to_inner,
    to_qkv,
    heads,
    has_next,  # False: qkv, to_qkv and heads are not used
):
    """From a layer's attention to the next layer's queries, keys and values."""
    first, last = _share(len(residual), thread, num_threads)
    quantize(first, last, attention, attended[0], attended[1])
    meet(counter, num_threads)
    _multiply(thread, num_threads, attended, o, to_hidden)
    meet(counter, 2 * num_threads)
    add_norm_quantize(first, last, to_hidden, attended[1], o[2], o[3], eps, residual, normed[0], normed[1])
    meet(counter, 3 * num_threads)
    _multiply(thread, num_threads, normed, gate_up, to_inner)
    meet(counter, 4 * num_threads)
    silu_quantize(first, last, to_inner, normed[1], gate_up[2], gate_up[3], width, inner[0], inner[1])
    meet(counter, 5 * num_threads)
    _multiply(thread, num_threads, inner, down, to_hidden)
    meet(counter, 6 * num_threads)
    add_norm_quantize(first, last, to_hidden, inner[1], down[2], down[3], eps, residual, normed[0], normed[1])
    if has_next:
        meet(counter, 7 * num_threads)
        _multiply_out(thread, num_threads, normed, qkv, to_qkv, heads)


@fast
def finish(thread, num_threads, counter, residual, norm, eps, hartley, normed, head, sums, logits):
    """From the residual stream to `logits` [num_rows, vocab_size] fp32; norm: its weight."""
    first, last = _share(len(residual), thread, num_threads)
    head_quantize(first, last, residual, norm, eps, hartley, normed[0], normed[1])
    meet(counter, num_threads)
    _multiply_out(thread, num_threads, normed, head, sums, logits)


@fast
def _share(count, thread, num_threads):
    """This thread's part of a range."""
    return count * thread // num_threads, count * (thread + 1) // num_threads


@fast
def _panels(weight, thread, num_threads):
    """This thread's panels of a product, in sets of as many as are multiplied together."""
    num_panels = len(weight[1]) // LANES
    num_sets = (num_panels + PANELS - 1) // PANELS
    first, last = _share(num_sets, thread, num_threads)
    return first * PANELS, min(last * PANELS, num_panels)


@fast
def _multiply(thread, num_threads, rows, weight, sums):
    first, last = _panels(weight, thread, num_threads)
    multiply(first, last, rows[0], weight[0], weight[1], sums)


@fast
def _multiply_out(thread, num_threads, rows, weight, sums, out):
    """This thread's columns of a product in fp32."""
    _multiply(thread, num_threads, rows, weight, sums)
    first, last = _panels(weight, thread, num_threads)
    dequantize(first * LANES, min(last * LANES, out.shape[1]), sums, rows[1], weight[2], weight[3], out)
