"""The seam for models of other runtimes, which know their own inputs and make their own target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nnfuzz.callform import CallForm
from nnfuzz.errors import Unsupported

if TYPE_CHECKING:
    from nnfuzz.seeds import Seeds
    from nnfuzz.space import Batch
    from nnfuzz.targets.copies import Copies
    from nnfuzz.targets.torch import TorchTarget


class ForeignModel(ABC):
    """A model that is no Python function of tensors, though it can be called like one.

    Attributes:
        name: for the header of a run: its path, where it has one.
        path: its file; None for one that lives in memory alone.
        inputs, outputs: what it declares of them, in order: ``name``, ``dtype`` (None: unknown), ``shape`` (a size, the
            name of a free one or None an axis; None where the rank is open), ``optional``.
    """

    name: str
    path: Path | None
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @abstractmethod
    def __call__(self, *args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        """Outputs by name."""

    @abstractmethod
    def read_seeds(self, seeds: Any) -> Seeds:
        """Seeds as ``nnfuzz.seeds.read_seeds`` gives them, by what the model declares of its inputs."""

    @abstractmethod
    def as_target(self, form: CallForm, **options: Any) -> TorchTarget:
        """The target, for the arguments of ``TorchTarget`` beside the model, and ``flush_denormal``."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes it as a file."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """JSON-able: how it is run, where that is not the usual way."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """JSON-able: what a script needs beside its name to run it again."""

    def copies(self, way: str, parts: list[Batch]) -> Copies:
        """What makes copies of it in the way that ``--as`` names. ``parts``: model inputs that calibrate them.

        Raises:
            UsageError: no such way. Unsupported: no copies of such models are made.
        """
        raise Unsupported(f"--as {way} derives a copy, and none can be made of {self.name}: give both models")
