"""The catalogue of unsafe operations, by ATen base name. One file per family; each lists its `HAZARDS`.

A new entry is a `Hazard` in one of those lists: the tracer, the tests and the documentation take it from there.
"""

from collections.abc import Iterable

from nnfuzz.probe.catalogue import angles, domains, exponentials, losses, matrices, normalising, overflow
from nnfuzz.probe.hazard import Catalogue, Hazard

HAZARDS: tuple[Hazard, ...] = (
    *domains.HAZARDS,
    *exponentials.HAZARDS,
    *angles.HAZARDS,
    *normalising.HAZARDS,
    *overflow.HAZARDS,
    *matrices.HAZARDS,
    *losses.HAZARDS,
)


def catalogue_of(hazards: Iterable[Hazard]) -> Catalogue:
    """Hazards keyed by the ATen base names that they hold for. Two hazards with one id are a mistake."""
    table: dict[str, list[Hazard]] = {}
    seen: set[str] = set()
    for hazard in hazards:
        if hazard.id in seen:
            raise ValueError(f"two hazards are called {hazard.id!r}")
        seen.add(hazard.id)
        for op in hazard.ops:
            table.setdefault(op, []).append(hazard)
    return {op: tuple(entries) for op, entries in table.items()}


CATALOGUE: Catalogue = catalogue_of(HAZARDS)
