"""A model run twice on the same rows: all together, and each alone."""

from __future__ import annotations

import torch
from torch import nn

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.seeds import SeedGroup, Seeds
from nnfuzz.space import Batch, size
from nnfuzz.targets.base import Target, Trace, Want
from nnfuzz.targets.drive import Named
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.taps import reachable_modules
from nnfuzz.targets.torch import TorchTarget

ROWS = 6
"""Rows of one candidate: enough for one outlier to spoil others, few enough to be run one by one."""

_TRIED = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256)
"""Numbers of rows for which a graph may be fixed."""
_CANNOT = (
    "so that its rows cannot be run both together and alone: export it with a dynamic first axis (a batch of any size)"
)

DIFFERENT_BY_DESIGN = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)


class RowwiseTarget(Target):
    """Candidates are small batches of rows, ``(batch, rows, ...)``.

    Outputs: ``together.*`` from one call with all rows, ``alone.*`` from one call a row, and ``training.*`` from one
    call in training mode, when the model holds no layer that is different there by design (dropout, batch norm).
    """

    def __init__(self, side: TorchTarget):
        self.side = side
        self.name, self.unit, self.device = side.name, "batch", side.device
        self.why = "a candidate is a small batch, whose rows are compared with themselves run alone"
        self.notes: list[str] = []
        self._training_twin = self._can_train()

    def groups_of_rows(self, seeds: Seeds, model: object = None) -> Seeds:
        """Seeds as small batches: neighbours together, short of rows repeated.

        Args:
            model: as it was given; one of another runtime declares which sizes it fixes.

        Raises:
            UsageError: the seeds or the model have no rows that can be run together and alone.
            ModelFailure: the model raises on them.
        """
        if not seeds.stacked:
            raise UsageError(_no_rows(seeds, model))
        (group,) = seeds.groups
        total = size(group.batch)
        index = [
            [(i + k) % total for k in range(ROWS)] for i in range(0, total, max(1, ROWS if total > ROWS else total))
        ]
        batch = {n: torch.stack([t[rows] for rows in index]) for n, t in group.batch.items()}
        try:
            self.run({n: t[:1].to(self.device) for n, t in batch.items()}, Want())
        except UsageError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            taken = self._rows_taken(group.batch)
            if taken is None:
                raise ModelFailure(f"the model fails on its own seeds: {told}") from error
            if taken == ROWS:
                other = "each of them alone" + " or in training mode" * self._training_twin
                raise ModelFailure(f"the model runs {ROWS} rows together, but not {other}: {told}") from error
            raise UsageError(
                f"the model runs {taken} row{'s' * (taken != 1)} of the seeds at a time but not {ROWS} ({told}), "
                f"{_CANNOT}"
            ) from error
        return Seeds(seeds.form, [SeedGroup(batch, [group.index[r[0]] for r in index])], False, seeds.notes)

    def _rows_taken(self, rows: Batch) -> int | None:
        """How many rows the model runs at a time, ``ROWS`` if it can be; None where no number was found."""
        total = size(rows)
        for count in (ROWS, *(n for n in _TRIED if n != ROWS and n <= total), total):
            try:
                index = torch.arange(count) % total
                self.side.call({n: t[index].to(self.device) for n, t in rows.items()})
            except Exception:  # that it fails is the answer
                continue
            return count
        return None

    def run(self, batch: Batch, want: Want) -> Trace:
        count = size(batch)
        return Trace.cat([self._one({n: t[i] for n, t in batch.items()}) for i in range(count)], [1] * count)

    def model_input(self, candidate: Batch) -> Batch:
        return {n: t[0] for n, t in candidate.items()}

    def describe(self) -> str:
        return self.side.describe()

    def _one(self, inputs: Batch) -> Trace:
        together = self.side.call(inputs)
        count = size(inputs)
        for name, t in together.items():
            if t.dim() == 0 or t.shape[0] != count:
                raise UsageError(
                    f"output {name} has shape {tuple(t.shape)} for {count} rows, so rows cannot be told apart: "
                    "the model reduces over them"
                )
        alone = [self.side.call({n: t[i : i + 1] for n, t in inputs.items()}) for i in range(count)]
        outputs = {f"together.{n}": t[None] for n, t in together.items()}
        common = [n for n in together if all(n in row for row in alone)]
        outputs |= {f"alone.{n}": torch.cat([row[n] for row in alone])[None] for n in common}
        if self._training_twin:
            outputs |= {f"training.{n}": t[None] for n, t in self._in_training(inputs).items()}
        return Trace(outputs)

    def _in_training(self, inputs: Batch) -> Named:
        module = self.side.model
        assert isinstance(module, nn.Module)
        module.train()
        try:
            return self.side.call(inputs)
        finally:
            module.eval()

    def _can_train(self) -> bool:
        if not isinstance(self.side.model, nn.Module) or not self.side.trainable:
            return False
        inner = [m for root in reachable_modules(self.side.model).values() for m in root.modules()]
        active: list[nn.Module] = [m for m in inner if isinstance(m, DIFFERENT_BY_DESIGN) and getattr(m, "p", 1) != 0]
        active += [m for m in inner if getattr(m, "dropout", 0) and isinstance(getattr(m, "dropout", None), float)]
        if active:
            self.notes.append(
                f"train() is not compared with eval(): {type(active[0]).__name__} is different there by design"
            )
        return not active


def _no_rows(seeds: Seeds, model: object) -> str:
    """Why seeds that are whole candidates cannot be taken apart into rows."""
    first = seeds.groups[0].batch
    if isinstance(model, ForeignModel):
        for spec in model.inputs:
            if spec.name in first and spec.shape and isinstance(spec.shape[0], int):
                return f"{model.name} fixes the first axis of its input {spec.name!r} to {spec.shape[0]}, {_CANNOT}"
    needed = "check rows needs one first axis of rows that all inputs share"
    single = [n for n, t in first.items() if t.dim() == 1]
    if single and len(single) < len(first):
        return f"{needed}, but {single[0]!r} is one number for all rows, which is not supported"
    if seeds.uneven:
        return f"{needed}, but the seeds give them different lengths ({seeds.uneven}): give as many rows of each"
    return (
        f"{needed}, but the seeds are whole candidates, in a list or along one more axis in front: stack them "
        "into one array for each input, whose first axis counts rows"
    )
