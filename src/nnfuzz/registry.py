"""One registry for every extension point: a name, a factory, duplicates refused, misses answered with what exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from nnfuzz.errors import UsageError
from nnfuzz.nearest import did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Names → things of one kind (``Registry[Mutator]("mutator")``).

    Other packages add theirs without touching nnfuzz through the entry-point group ``nnfuzz.<kind>s``, each
    pointing at a module that registers itself on import.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._items: dict[str, T] = {}
        self._entry_points_loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: ``@MUTATORS.register("noise")``. Raises ``UsageError`` when the name is taken."""

        def add(item: T) -> T:
            if name in self._items:
                raise UsageError(f"{self.kind} {name!r} is registered twice; choose another name")
            self._items[name] = item
            return item

        return add

    def __getitem__(self, name: str) -> T:
        self._load_entry_points()
        if name not in self._items:
            hint = did_you_mean(name, self._items).replace(": ", "; ", 1)
            kind = self.kind.replace("_", " ")
            raise UsageError(f"no {kind} is called {name!r}: choose one of {', '.join(self)}{hint}")
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(sorted(self._items))

    def __contains__(self, name: object) -> bool:
        self._load_entry_points()
        return name in self._items

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._items)

    def _load_entry_points(self) -> None:
        if not self._entry_points_loaded:
            self._entry_points_loaded = True
            for entry in entry_points(group=f"nnfuzz.{self.kind}s"):
                entry.load()
