"""Nearest neighbours among all coverage vectors that the corpus has shown.

Exact search while small, a navigable small-world graph (HNSW, Malkov & Yashunin 2018) when large. The change-over was
measured with ``benchmarks/index.py``: below it the exact look-up of a batch costs less than the graph's.
"""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

EXACT_UP_TO = 4096
LINKS, EFFORT_BUILD, EFFORT_SEARCH = 16, 40, 24


class NearestIndex:
    """Squared L2 distance to the nearest of the added vectors; grows only (``rebuild`` starts over)."""

    def __init__(self, dimensions: int, exact_up_to: int = EXACT_UP_TO):
        self.dimensions, self.exact_up_to = dimensions, exact_up_to
        self._index: faiss.Index = faiss.IndexFlatL2(dimensions)
        self._exact = True

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        """float32 ``(n, d)``. The same vectors in the same order give the same index, however they were grouped."""
        if self._exact and len(self) + len(vectors) > self.exact_up_to:
            self._to_graph()
        if self._exact:
            self._index.add(np.ascontiguousarray(vectors))
        else:
            # One at a time: a graph built from groups depends on the grouping, and a resumed run groups otherwise.
            for row in np.ascontiguousarray(vectors):
                self._index.add(row[None])

    def distances(self, queries: Vectors) -> NDArray[np.float32]:
        """float32 ``(n,)``: squared distance of each query to its nearest vector; infinite while empty."""
        if not len(self):
            return np.full(len(queries), np.inf, np.float32)
        found, _ = self._index.search(np.ascontiguousarray(queries), 1)
        return np.maximum(found[:, 0], 0.0)

    def rebuild(self, vectors: Vectors) -> None:
        self._index, self._exact = faiss.IndexFlatL2(self.dimensions), True
        if len(vectors):
            self.add(vectors)

    def _to_graph(self) -> None:
        kept = self._index.reconstruct_n(0, len(self)) if len(self) else np.empty((0, self.dimensions), np.float32)
        graph = faiss.IndexHNSWFlat(self.dimensions, LINKS)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = EFFORT_BUILD, EFFORT_SEARCH
        self._index, self._exact = graph, False
        for row in kept:
            graph.add(row[None])
