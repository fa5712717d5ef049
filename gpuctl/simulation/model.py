"""The verifier of the extraction: a mixture of experts of 1T parameters under vLLM, and what it takes of each GPU.

Sizes are of one of eight tensor-parallel ranks. Together they come to the 91 of 94.97 GiB that the real one takes.
"""

from __future__ import annotations

import math
import random
from typing import List

from gpuctl.simulation.cuda import GIB, MIB

RANKS = 8
SHARDS = 64
LAYERS = 61
HIDDEN = 7168
KV_BYTES_PER_TOKEN = LAYERS * 576 * 2  # latent attention: 512 + 64 values a layer, bf16

WEIGHT_BYTES = int(63.68 * GIB)  # 547 GB in INT4 over eight ranks
KV_CACHE_BYTES = int(26.40 * GIB)
GRAPH_BYTES = 340 * MIB
SPLIT_MIB = 78  # reserved by PyTorch but unallocated

CHUNK_TOKENS = 8192  # the engine prefills at most so many at once
SCALE_GROUP = 32  # activations are quantised in groups of so many, one byte of scale for each
SCALES_PER_LAYER = 3

SAMPLES = 1000
LENGTH_SCALE = 505.0  # their lengths fall off exponentially; with this they come to 503K tokens


def kv_cache_tokens() -> int:
    return KV_CACHE_BYTES // KV_BYTES_PER_TOKEN


def prefill_bytes(batch_size: int, max_seq_len: int) -> int:
    """Activations of the chunk that is being computed: hidden states, residual and their norm, in bf16."""
    return 3 * min(batch_size * max_seq_len, CHUNK_TOKENS) * HIDDEN * 2


def scale_bytes(batch_size: int, max_seq_len: int) -> int:
    """One scale tensor: a slot for every token that the batch may hold, rounded up to a power of two.

    Sized by the batch and not by the chunk, this is what a batch of everything at once does not survive: 2000 × 2048
    tokens are 4,194,304 slots of 224 bytes, 896 MiB, three times a layer.
    """
    slots = 1 << math.ceil(math.log2(batch_size * max_seq_len))
    return slots * HIDDEN // SCALE_GROUP


def sample_lengths(count: int, max_seq_len: int) -> List[int]:
    """Tokens in each sample, always the same: 1,000 samples of up to 2,048 tokens hold 503K."""
    chance = random.Random(12)
    return [max(24, min(max_seq_len, round(-LENGTH_SCALE * math.log(1 - chance.random())))) for _ in range(count)]


def batch_seconds(tokens: int) -> float:
    """A forward pass and the copy of its hidden states to the disk."""
    return 0.6 + tokens / 2600


def shard_seconds(chance: random.Random) -> float:
    return chance.uniform(18.0, 24.0)
