"""Gradients in the search for text: prompts that bring the model nearer to a wished continuation, a few ids at a time.

A turn serves one goal. Its wish (what the prompt makes the model write now, up to where a word begins well, and then
the word) is scored by the model itself, which costs one run over prompt and wish and no writing. Where the gradient
says that another id would help most (HotFlip, Ebrahimi et al., ACL 2018), ids are exchanged at random among the best
(GCG, Zou et al., arXiv 2307.15043), scored, and the best few go on. What the turn ends with is then written out and
judged like any other candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.breed import Brood, Group
from nnfuzz.corpus import Bucket, Corpus
from nnfuzz.errors import NnfuzzError
from nnfuzz.gradient.climber import NAME, Climber, Turn
from nnfuzz.text.codec import Codec, pack, unpack
from nnfuzz.text.frontier import GoalFrontier
from nnfuzz.text.models.base import LanguageModel, Writing
from nnfuzz.text.objectives import Together
from nnfuzz.text.space import PROMPT, TextSpace

ROUNDS = 12
WIDTH = 8
"""Prompts that a round goes on with."""
TRIES = 16
"""Mutants of each."""
BEST = 128
"""Exchanges of largest first-order gain that a mutant draws from."""
EMITTED = 16
GAIN = 0.95
"""A turn must bring what is lacking down to this share, or the goal is wished for in another way."""
COST = 2
"""A candidate of a turn costs about as much as so many plain ones."""
LONGEST = 24
"""Longer prompts are cut to their end for a turn: what is far away moves little and costs much."""


Scored = tuple[float, list[int], int]
"""The score of a prompt's wish, the prompt, and the entry of the corpus that it comes from."""


class TextClimber(Climber):
    """Makes gradient broods for goals that have a wish.

    Args:
        write: continues prompts, for goals whose wish depends on what the model says now.
    """

    def __init__(
        self,
        objective: Together,
        model: LanguageModel,
        codec: Codec,
        space: TextSpace,
        corpus: Corpus,
        frontier: GoalFrontier,
        write: Callable[[list[list[int]]], list[str]],
        writing: Writing,
    ):
        self.objective, self.model, self.codec = objective, model, codec
        self.text_space, self.corpus, self.frontier, self.write = space, corpus, frontier, write
        self.writing = writing
        self.pools: dict[tuple[int, int], list[Scored]] = {}
        """Of each goal and way to wish for it, what the last turn ended with; gone once a turn brings nothing more."""
        self.ways: dict[int, int] = {}
        """How often a goal was wished for in vain: another way is next."""
        self.trouble = ""
        self.turns = 0
        self.late = lambda: False
        self._stops: Tensor | None = None

    @property
    def most(self) -> int:
        return EMITTED

    @property
    def alive(self) -> bool:
        return not self.trouble and bool(self._goals())

    def wants_turn(self, batch: int) -> bool:
        """One batch in two while goals are open; the bandit may ask for more."""
        return self.alive and batch % 2 == 0

    def turn(self, batch: int, rng: np.random.Generator) -> Turn | None:
        goals = self._goals()
        if self.trouble or not goals:
            return None
        goal = goals[self.turns % len(goals)]
        self.turns += 1
        way = self.ways.get(goal, 0) % self.objective.parts[self.objective.goals[goal][0]].wishes
        before = self.pools.pop((goal, way), [])
        try:
            pool = self._climbed(goal, way, self._starting_points(goal, before, rng), rng)
        except NnfuzzError:
            raise
        except Exception as error:  # a model without gradients is still mutated; the run says so
            self.trouble = f"{type(error).__name__}: {error}"[:200]
            return None
        if pool and pool[0][0] > (GAIN * before[0][0] if before else -np.inf):
            self.pools[goal, way] = pool[:WIDTH]  # the next turn of this goal goes on here
        else:
            self.ways[goal] = self.ways.get(goal, 0) + 1
        return self._brood(pool[:EMITTED]) if pool else None

    def judged(self, turn: Turn) -> None:
        """Nothing to learn: what was admitted is the corpus' business."""

    def _goals(self) -> list[int]:
        return [g for g in self.objective.open if self.objective.parts[self.objective.goals[g][0]].wishes]

    def _wish(self, goal: int, way: int, text: str) -> str | None:
        part, number = self.objective.goals[goal]
        return self.objective.parts[part].wish(number, way, text)

    @property
    def stops(self) -> Tensor:
        """bool ``(vocabulary,)``: ids whose text ends a word."""
        if self._stops is None:
            out = self.model.out
            pieces = out.pieces(list(range(out.size)))
            self._stops = torch.tensor([not (p[:1].isalnum() or p[:1] == "_") for p in pieces])
        return self._stops

    # ------------------------------------------------------------------ the climb

    def _starting_points(self, goal: int, pool: list[Scored], rng: np.random.Generator) -> list[tuple[list[int], int]]:
        """Where the last turn ended; else a quarter of the goal's frontier, the rest from anywhere in the corpus."""
        every = [(ids, entry) for _, ids, entry in pool if entry in self.corpus.place]
        if not every:
            near = [i for i in self.frontier.best(goal) if i in self.corpus.place][: WIDTH // 4]
            all_ids = list(self.corpus.place)
            near += [all_ids[int(i)] for i in rng.integers(0, len(all_ids), WIDTH - len(near))]
            every = [(unpack(self.corpus.candidate(i)[PROMPT])[0], i) for i in near]
        key = self.corpus.place[every[0][1]][0]  # a brood is of one width
        return [(ids, i) for ids, i in every if self.corpus.place[i][0] == key]

    def _climbed(
        self, goal: int, way: int, starts: list[tuple[list[int], int]], rng: np.random.Generator
    ) -> list[Scored]:
        """All prompts that were scored, best first, each once."""
        texts = self.write([ids for ids, _ in starts])
        room = self._room(starts[0][1])
        rows: list[tuple[float, list[int], int, list[int]]] = []
        for (ids, entry), text in zip(starts, texts, strict=True):
            wished = self._encoded(self._wish(goal, way, text))
            if wished and ids:
                rows.append((-np.inf, ids[-min(LONGEST, room) :], entry, wished))
        seen: dict[tuple[int, ...], Scored] = {}
        for _ in range(ROUNDS):
            if not rows or self.late():
                break
            wish = self.model.wish(
                [r[1] for r in rows], [r[3] for r in rows], self.writing, gains=True, stops=self.stops
            )
            assert wish.gains is not None
            rows = [(float(p), *r[1:]) for p, r in zip(wish.score, rows, strict=True)]
            tries = [(0.0, made, r[2], r[3]) for r, g in zip(rows, wish.gains, strict=True)
                     for made in self._exchanged(r[1], g, rng)]  # fmt: skip
            asked = [t[1] for t in tries], [t[3] for t in tries]
            score = self.model.wish(*asked, self.writing, gains=False, stops=self.stops).score
            tries = [(float(p), *t[1:]) for p, t in zip(score, tries, strict=True)]
            rows = sorted([*rows, *tries], key=lambda r: -r[0])
            for p, ids, entry, _ in rows:
                seen.setdefault(tuple(ids), (p, ids, entry))
            rows = _distinct(rows)[:WIDTH]
            if rows[0][0] == 0:  # it is written
                break
        return sorted(seen.values(), key=lambda r: -r[0])

    def _exchanged(self, ids: list[int], gains: Tensor, rng: np.random.Generator) -> list[list[int]]:
        """Mutants with one to three of the most promising exchanges."""
        table = gains[: len(ids), : self.codec.size].clone()
        if self.codec.legal is not None:
            illegal = torch.ones(table.shape[1], dtype=torch.bool, device=table.device)
            illegal[torch.tensor(self.codec.legal, device=table.device)] = False
            table[:, illegal] = -torch.inf
        table[torch.arange(len(ids)), torch.tensor(ids)] = -torch.inf
        best = table.flatten().topk(min(BEST, table.numel())).indices.cpu().numpy()
        made = []
        for _ in range(TRIES):
            mutant = list(ids)
            for at in rng.choice(best, int(rng.integers(1, 4))):
                mutant[int(at) // table.shape[1]] = int(at) % table.shape[1]
            made.append(mutant)
        return made

    def _room(self, entry: int) -> int:
        """The width of the row that an entry is kept in."""
        return self.corpus.buckets[self.corpus.place[entry][0]].inputs[PROMPT].view.shape[1]

    def _encoded(self, wish: str | None) -> list[int]:
        """The wish as the model's ids; nothing when it cannot say it."""
        if wish is None:
            return []
        try:
            return self.model.out.encode(wish)
        except NnfuzzError:
            try:
                return self.model.out.encode(wish.strip())
            except NnfuzzError:
                return []

    # ------------------------------------------------------------------ what comes of it

    def _brood(self, pool: list[Scored]) -> Turn:
        entries = [entry for _, _, entry in pool]
        bucket: Bucket = self.corpus.buckets[self.corpus.place[entries[0]][0]]
        rows = np.array([self.corpus.place[e][1] for e in entries])
        anchors = bucket.anchors(self.text_space).take(torch.from_numpy(bucket.anchor_rows[rows]))
        x = pack([ids for _, ids, _ in pool], self._room(entries[0]))
        batch = self.text_space.project({PROMPT: x}, anchors)
        brood = Brood(batch, bucket, rows, [Group(NAME, slice(0, len(x)))], anchors, cost=COST)
        return Turn(brood, [], [], [])

    def to_json(self) -> dict[str, Any]:
        pools = [[goal, way, [list(each) for each in pool]] for (goal, way), pool in self.pools.items()]
        ways = [[goal, count] for goal, count in self.ways.items()]
        return {"pools": pools, "turns": self.turns, "ways": ways, "trouble": self.trouble}

    def load(self, data: dict[str, Any]) -> None:
        self.pools = {(g, way): [(p, ids, e) for p, ids, e in pool] for g, way, pool in data.get("pools", [])}
        self.turns, self.trouble = data.get("turns", 0), data.get("trouble", "")
        self.ways = dict(data.get("ways", []))


def _distinct(rows: list[tuple[float, list[int], int, list[int]]]) -> list[tuple[float, list[int], int, list[int]]]:
    seen: set[tuple[int, ...]] = set()
    return [r for r in rows if not (tuple(r[1]) in seen or seen.add(tuple(r[1])))]  # type: ignore[func-returns-value]
