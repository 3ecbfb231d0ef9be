"""Several transforms as one: applied first to last on the client, last to first on the server."""

from __future__ import annotations

import torch

from fedatlas.algorithm import Round, State, Transform, Update
from fedatlas.rng import torch_stream


def chain(*transforms: Transform) -> Transform:
    """Return encode_1, ..., encode_n on the client; decode_n, ..., decode_1 and finalize_n, ..., finalize_1 on the server.

    Each sees the float trees left by the previous one, such as the values that topk chose. Error feedback remembers what its own
    transform left out, not what later ones round away.
    """

    def memory_init(update: Update) -> State:
        memory: dict[str, State] = {}
        for i, transform in enumerate(transforms):
            memory[str(i)] = transform.memory_init(update) if transform.memory_init else {}
            update, _ = transform.encode(update, memory[str(i)], torch_stream(0, "transform"))  # only for its shapes
        return memory

    def encode(update: Update, memory: State, rng: torch.Generator) -> tuple[Update, State]:
        after: dict[str, State] = {}
        for i, transform in enumerate(transforms):
            update, after[str(i)] = transform.encode(update, memory.get(str(i), {}), rng)
        return update, after if memory else memory

    def decode(sealed: Update) -> Update:
        for transform in reversed(transforms):
            sealed = transform.decode(sealed) if transform.decode else sealed
        return sealed

    def finalize(mean: Update, round: Round, rng: torch.Generator) -> Update:
        for transform in reversed(transforms):
            mean = transform.finalize(mean, round, rng) if transform.finalize else mean
        return mean

    return Transform(
        "+".join(transform.name for transform in transforms),
        encode,
        decode if any(t.decode for t in transforms) else None,
        memory_init if any(t.memory_init for t in transforms) else None,
        finalize if any(t.finalize for t in transforms) else None,
    )
