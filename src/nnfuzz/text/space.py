"""What a legal prompt is: ids of the codec, then padding; no shorter and no longer than allowed."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.space import Anchors, Batch, InputSpace, InputSpec
from nnfuzz.text.codec import PAD, Codec

PROMPT = "prompt"
"""The one input of a text run: int32 ids ``(width,)``, filled up with ``PAD``."""


class TextSpace(InputSpace):
    """A space with the one input ``PROMPT``, in rows of any width up to the longest."""

    @property
    def prompt(self) -> InputSpec:
        return self.specs[PROMPT]

    @property
    def width(self) -> int:
        """The longest prompt."""
        return self.prompt.shape[0]

    @property
    def shortest(self) -> int:
        """The least number of ids."""
        return int((self.prompt.low >= 0).sum())

    def _project_one(self, x: Tensor, spec: InputSpec, anchors: Anchors) -> Tensor:
        return legal_prompts(x, spec)

    def legal_boxes(self, batch: Batch, anchors: Anchors) -> Tensor:
        x = batch[PROMPT]
        return (x == legal_prompts(x.clone(), self.prompt)).all(1)


def text_space(codec: Codec, width: int, shortest: int) -> TextSpace:
    """Prompts of ``shortest`` to ``width`` ids of the codec."""
    low = torch.full((width,), PAD, dtype=torch.int32)
    low[:shortest] = 0
    spec = InputSpec(
        PROMPT, (width,), torch.int32, low, torch.tensor(codec.size - 1, dtype=torch.int32), kind="text",
        choices=None if codec.legal is None else torch.tensor(codec.legal, dtype=torch.int32), dims=(width,),
    )  # fmt: skip
    return TextSpace({PROMPT: spec})


def legal_prompts(x: Tensor, spec: InputSpec) -> Tensor:
    """The same prompts, each id moved to the nearest legal one, nothing after the first padding, and the shortest
    prompts filled up with the first legal id."""
    inside = (x != PAD).long().cumprod(1).bool()
    ids = x.clamp(0, int(spec.high))
    first = 0
    if spec.choices is not None:
        legal = spec.choices.to(x.device)
        at = torch.searchsorted(legal, ids).clamp(max=len(legal) - 1)
        ids, first = legal[at], int(legal[0])
    ids = torch.where(inside, ids, PAD)
    need = spec.low[: x.shape[1]].to(x.device) >= 0
    return torch.where(need & (ids == PAD), first, ids).to(x.dtype)
