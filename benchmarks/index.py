"""Exact or graph: what a batch's look-ups cost against the size of the index, and where the two cross.

    python benchmarks/index.py [--most 131072] [--repeats 15] [--data mlp random]

A batch of fuzzing asks for the nearest neighbour of up to 48 mutants and then adds a few. For each size: the median
time of 48 look-ups in the exact index and in the graph (HNSW), that of adding one vector to each, the share of
queries for which the graph names the true nearest, and how far what it names is beyond it (mean ratio of
distances). A batch's cost is 48 look-ups and 8 additions. Vectors: "mlp": the coverage vectors of a corpus of the
digit classifier, mutants of mutants; "random": independent normal numbers, which no index can order: the worst
case.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lab
from nnfuzz.coverage.index import EFFORT_SEARCH, EXACT_UP_TO, LINKS, NearestIndex
from nnfuzz.coverage.novelty import LOOKUPS
from nnfuzz.coverage.vectors import MOST_DIMENSIONS

ADDITIONS = 8
"""A batch admits some two entries by novelty and up to eight by score."""

Vectors = NDArray[np.float32]


def vectors_of(kind: str, count: int) -> tuple[Vectors, Vectors]:
    """``count`` vectors and 1,024 queries."""
    if kind == "random":
        both = np.random.default_rng(0).standard_normal((count + 1024, MOST_DIMENSIONS)).astype(np.float32)
        return both[:count], both[count:]
    mlp, _ = lab.classifier()
    images, _ = lab.seed_images([mlp], 10)
    with lab.fuzzer_of(mlp, images, ranges=(-1, 1), max_corpus=4 * count) as fuzzer:
        lab.prefill(fuzzer, count)
        kept = fuzzer.corpus.vectors()
        parts, rng, queries = fuzzer.parts, np.random.default_rng(1), []
        for brood in parts.breeder.broods(1024, ["noise", "sparse-noise"], rng):
            trace = fuzzer.run(brood.batch, parts.objectives[0]).trace
            assert trace is not None
            queries.append(parts.keeper.vectors(trace, len(brood.parents)).numpy().copy())
    order = np.random.default_rng(2).permutation(len(kept))  # every size is a fair sample of the same corpus
    return kept[order[:count]], np.concatenate(queries)[:1024]


def look_up(index: NearestIndex, queries: Vectors, repeats: int) -> float:
    """Median seconds of one batch of look-ups."""
    times = []
    for i in range(repeats + 1):
        some = queries[(i * LOOKUPS) % (len(queries) - LOOKUPS) :][:LOOKUPS]
        began = time.perf_counter()
        index.distances(some)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measure(kind: str, most: int, repeats: int, threads: int) -> list[dict[str, Any]]:
    """One row a size. Both indices grow from size to size; additions are timed on the last of each growth."""
    lab.start(threads)
    vectors, queries = vectors_of(kind, most)
    exact, graph = NearestIndex(vectors.shape[1], exact_up_to=most), NearestIndex(vectors.shape[1], exact_up_to=0)
    rows, size = [], 512
    while size <= most:
        new = vectors[len(exact) : size]
        adding = {}
        for name, index in (("exact", exact), ("graph", graph)):
            index.add(new[:-256])
            began = time.perf_counter()
            for row in new[-256:]:
                index.add(row[None])
            adding[name] = (time.perf_counter() - began) / 256
        looking = {"exact": look_up(exact, queries, repeats), "graph": look_up(graph, queries, repeats)}
        true, named = np.sqrt(exact.distances(queries)), np.sqrt(graph.distances(queries))
        rows.append(
            {
                "size": size, "look_exact": looking["exact"], "look_graph": looking["graph"],
                "add_exact": adding["exact"], "add_graph": adding["graph"],
                "batch_exact": looking["exact"] + ADDITIONS * adding["exact"],
                "batch_graph": looking["graph"] + ADDITIONS * adding["graph"],
                "recall": float((named <= true * 1.0001 + 1e-6).mean()),
                "beyond": float((named / np.maximum(true, 1e-9)).mean()),
            }
        )  # fmt: skip
        size *= 2
    return rows


def crossing(rows: list[dict[str, Any]], key: str = "batch") -> float | None:
    """The size from which the graph stays cheaper, between the sizes measured (log-linear); None if it never does."""
    gaps = [np.log(r[f"{key}_exact"] / r[f"{key}_graph"]) for r in rows]
    below = [i for i, g in enumerate(gaps) if g <= 0]
    if not below:
        return float(rows[0]["size"])
    last = below[-1]
    if last + 1 == len(rows):
        return None
    share = -gaps[last] / (gaps[last + 1] - gaps[last])
    return float(rows[last]["size"] * 2**share)


def main() -> None:
    """Measures, prints the tables and the crossings, saves raw data."""
    parser = lab.parser(__doc__)
    parser.add_argument("--most", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--data", nargs="+", default=["mlp", "random"], choices=["mlp", "random"])
    options = parser.parse_args()
    lab.start(options.threads)
    print(lab.heading(options.threads))
    print(f"{LOOKUPS} queries, {MOST_DIMENSIONS} dimensions; HNSW: {LINKS} links, search effort {EFFORT_SEARCH}\n")
    data = {}
    for kind in options.data:
        rows = data[kind] = measure(kind, options.most, options.repeats, options.threads)
        lines = [
            [
                f"{r['size']:,}",
                *(f"{1e6 * r[k]:,.0f}" for k in ("look_exact", "look_graph")),
                *(f"{1e6 * r[k]:,.1f}" for k in ("add_exact", "add_graph")),
                *(f"{1e6 * r[k]:,.0f}" for k in ("batch_exact", "batch_graph")),
                f"{r['recall']:.3f}",
                f"{r['beyond']:.3f}",
            ]
            for r in rows
        ]
        heads = ["size", "look-up exact, µs", "graph", "one addition exact, µs", "graph", "a batch exact, µs", "graph",
                 "recall@1", "distance ratio"]  # fmt: skip
        print(f"### {kind}\n\n{lab.table(heads, lines)}\n")
        cross = {k: crossing(rows, k) for k in ("look", "batch")}
        print(
            f"crossing: look-ups at {lab.show(cross['look'])}, a whole batch at {lab.show(cross['batch'])} entries; "
            f"EXACT_UP_TO is {EXACT_UP_TO:,}\n"
        )
    print(f"raw data: {lab.save(options.results, 'index', options.threads, data)}")


if __name__ == "__main__":
    main()
