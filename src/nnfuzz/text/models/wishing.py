"""Gradients over ids: how much likelier a wished continuation would become if another id stood in the prompt.

The first-order estimate of HotFlip (Ebrahimi et al., ACL 2018) says that exchanging the embedding e of a position for
E[v] changes a score by about (E[v] − e) · ∂score/∂e. Ranked so, exchanges come first where the gradient is large: at
places where any exchange destroys most. Its direction is what can be trusted at such distances, so that the cosine
ranks them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nnfuzz.text.models.base import Wish, Writing
from nnfuzz.text.models.choosing import noise_of

NEAR = 1e-3
"""Embeddings nearer than this share of their lengths are the same: differences of products round so far."""


def embedding_of(module: nn.Module, vocabulary: int) -> nn.Embedding | None:
    """The layer that turns ids into vectors; None when the module has none of that size."""
    inputs = getattr(module, "get_input_embeddings", None)
    if callable(inputs) and isinstance(found := inputs(), nn.Embedding):
        return found
    sized = [m for m in module.modules() if isinstance(m, nn.Embedding) and m.num_embeddings >= vocabulary]
    return sized[0] if sized else None


def _as_chosen(logits: Tensor, wanted: Tensor, writing: Writing) -> Tensor:
    """What the choice at each place is made from: the logits, or with temperature and the noise of its step."""
    if not writing.temperature:
        return logits
    step = torch.cat([wanted[:, 1:], wanted.new_zeros(len(wanted), 1)], 1).long().cumsum(1)
    step = step - torch.cat([wanted[:, 1:], wanted.new_zeros(len(wanted), 1)], 1).long()  # of the id that follows
    count = int(step.max()) + 1
    noise = [noise_of(writing, t, (1, logits.shape[2]), logits.device) for t in range(count)]
    return torch.log_softmax(logits, -1) / writing.temperature + torch.cat(noise)[step]


def _lacks(logits: Tensor, ids: Tensor, wanted: Tensor) -> Tensor:
    """``(batch,)``, at most 0: by how much the wanted ids fall short of the largest others."""
    mine = logits.gather(2, ids[:, :, None])
    others = logits.scatter(2, ids[:, :, None], -torch.inf).amax(2)
    return torch.where(wanted, (mine[:, :, 0] - others).clamp(max=0.0), 0.0).sum(1)


def _lacks_stop(logits: Tensor, stops: Tensor) -> Tensor:
    """The same for an id that ends a word, any of them."""
    best = logits.masked_fill(~stops, -torch.inf).amax(1)
    return (best - logits.masked_fill(stops, -torch.inf).amax(1)).clamp(max=0.0)


def wish_through(
    forward: Callable[[Tensor], Tensor],
    embedding: nn.Embedding | None,
    head: list[int],
    prompts: list[list[int]],
    wishes: list[list[int]],
    writing: Writing,
    device: torch.device,
    *,
    cosines: bool,
    stops: Tensor | None,
) -> tuple[Wish, int]:
    """``forward``: int64 ``(batch, length)`` → logits, causal. ``embedding``: of the ids, for cosines. ``head``: ids
    before every prompt.

    Returns the wish and how many ids were run (backward passes count double).
    """
    rows = [[*head, *p, *w] for p, w in zip(prompts, wishes, strict=True)]
    width = max(map(len, rows))
    packed = torch.zeros(len(rows), width, dtype=torch.long, device=device)
    wanted = torch.zeros(len(rows), width, dtype=torch.bool, device=device)
    for r, ids in enumerate(rows):
        packed[r, : len(ids)] = torch.tensor(ids, device=device)
        wanted[r, len(ids) - len(wishes[r]) : len(ids)] = True
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        caught.append(leaf)
        return leaf

    handle = embedding.register_forward_hook(catch) if cosines and embedding is not None else None
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(cosines):
            logits = forward(packed).float()
            logits = _as_chosen(logits, wanted, writing)
            total = _lacks(logits[:, :-1], packed[:, 1:], wanted[:, 1:])
            if stops is not None:
                last = torch.tensor([len(ids) - 1 for ids in rows], device=device)
                total = total + _lacks_stop(logits[torch.arange(len(rows), device=device), last], stops.to(device))
            found = torch.autograd.grad(total.sum(), caught[0])[0] if handle is not None else None
    finally:
        if handle is not None:
            handle.remove()
    result = Wish(total.detach().double().nan_to_num(-1e30))
    run = packed.numel() * (3 if cosines else 1)
    if found is None or embedding is None:
        return result, run
    longest = max(map(len, prompts))
    at = slice(len(head), len(head) + longest)
    gradient, here = found[:, at].float(), caught[0].detach()[:, at].float()
    result.cosines = _cosines(gradient, here, embedding.weight.detach().float())
    return result, run


def _cosines(gradient: Tensor, here: Tensor, table: Tensor) -> Tensor:
    """``(batch, places, vocabulary)``, 0 where there is no gradient, or no way to go: the same embedding."""
    slope = gradient @ table.T - (gradient * here).sum(-1, keepdim=True)
    way = torch.cdist(here, table.expand(len(here), -1, -1))
    size = gradient.norm(dim=-1, keepdim=True)
    sure = (way > NEAR * (here.norm(dim=-1, keepdim=True) + table.norm(dim=-1))) & (size > 0)
    return torch.where(sure, slope / (way * size), 0.0).clamp_(-1.0, 1.0)
