"""The search for text led by wishes: prompts that bring the model nearer to a wished continuation, a few ids at a time.

A turn serves one goal. Its wish (a word; or what the prompt makes the model write now, up to where a word begins well,
and then the word) is scored by the model itself, which costs one run over prompt and wish and no writing. Where no text
of the model need be known, the turn begins at places of the model's own draws (see ``scout``). Then ids are exchanged,
at random among those that the gradient names (as in GCG, Zou et al., arXiv 2307.15043; it names them by its direction,
see ``models.wishing``); or, without gradients, anywhere. Mutants are scored, and the best few go on. What the turn ends
with is then written out and judged like any other candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nnfuzz import gradient
from nnfuzz.breed import Brood, Group
from nnfuzz.callform import staying
from nnfuzz.corpus import Bucket, Corpus
from nnfuzz.errors import NnfuzzError
from nnfuzz.gradient.climber import Climber, Turn
from nnfuzz.text.ascent import WIDTH, Ascent, Row, score_of
from nnfuzz.text.codec import Codec, pack, unpack
from nnfuzz.text.exchange import Exchanger
from nnfuzz.text.frontier import GoalFrontier
from nnfuzz.text.models.base import LanguageModel, Writing
from nnfuzz.text.objectives import Together
from nnfuzz.text.scout import Draws, Endings, Scored, Start, draws
from nnfuzz.text.space import PROMPT, TextSpace
from nnfuzz.text.wishes import Wishes

WISH = "wish"
"""The name of turns without gradients, where those with them are called "gradient"."""
SCOUTS, PLACES = 256, 192
"""Prompts that are continued by draws, and places in them that are scored for each wish."""
EMITTED = 16
GAIN = 0.7
"""A turn must bring what is lacking down to this share, or the goal begins anew: elsewhere, or wished for otherwise."""
FAILURES = 3
"""Turns in a row in which the model raises, after which it is asked no more."""
COST = 2
"""A candidate of a turn costs about as much as so many plain ones."""
LONGEST = 24
"""Longer prompts are cut to their end for a turn: what is far away moves little and costs much."""


class TextClimber(Climber):
    """Makes broods for goals that have a wish.

    Args:
        write: continues prompts, for goals whose wish depends on what the model says now.
        gradients: whether exchanges are led by them.
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
        *,
        gradients: bool = True,
    ):
        self.objective, self.model, self.codec = objective, model, codec
        self.text_space, self.corpus, self.frontier, self.write = space, corpus, frontier, write
        self.writing, self.gradients = writing, gradients
        self.name = gradient.NAME if gradients else WISH
        self.pools: dict[tuple[int, int], list[Scored]] = {}
        """Of each goal and way to wish for it, where its next turn begins; gone once a turn brings nothing more."""
        self.wishes, self.endings = Wishes(objective, model, writing.max_new), Endings()
        self.trouble, self.failures = "", 0
        self.late = lambda: False

    @property
    def most(self) -> int:
        return EMITTED

    @property
    def alive(self) -> bool:
        return not self.trouble and bool(self.wishes.goals())

    def wants_turn(self, batch: int) -> bool:
        """While goals are open; the bandit may ask for more."""
        return self.alive

    def turn(self, batch: int, rng: np.random.Generator) -> Turn | None:
        goals = self.wishes.goals()
        if self.trouble or not goals:
            return None
        goal = self.wishes.next(goals, self._fulfilled)
        self.wishes.taken[goal] = self.wishes.taken.get(goal, 0) + 1
        try:
            with staying():
                pool = self._turn(goal, goals, rng)
        except NnfuzzError:
            raise
        except Exception as error:  # a model that cannot be asked so is still mutated; the run says so
            self.failures += 1
            self.wishes.vain(goal)
            if self.failures == FAILURES:
                self.trouble = f"{type(error).__name__}: {error}"[:200]
            return None
        self.failures = 0
        return self._brood(pool[:EMITTED]) if pool else None

    def _turn(self, goal: int, goals: list[int], rng: np.random.Generator) -> list[Scored]:
        way = self.wishes.way(goal)
        if (goal, way) not in self.pools and self.wishes.free(goal) is not None:
            self._scout(goals, rng)
        before = [each for each in self.pools.pop((goal, way), []) if each[2] in self.corpus.place]
        pool = self._climbed(goal, way, before, rng)
        if pool and pool[0][0] > (GAIN * before[0][0] if before else -np.inf):
            self.pools[goal, way] = pool[:WIDTH]  # the next turn of this goal goes on here
        else:
            self.wishes.vain(goal)
        return pool

    def _fulfilled(self, goal: int) -> bool:
        pool = self.pools.get((goal, self.wishes.way(goal)))
        return bool(pool and pool[0][0] == 0)

    def judged(self, turn: Turn) -> None:
        """Nothing to learn: what was admitted is the corpus' business."""

    # ------------------------------------------------------------------ where a turn begins

    def _scout(self, goals: list[int], rng: np.random.Generator) -> None:
        """Pools for all goals that have none and whose wish is free, out of one set of draws."""
        every = list(self.corpus.place)
        starts: list[Start] = []
        for i in rng.integers(0, len(every), SCOUTS):
            ids = unpack(self.corpus.candidate(every[int(i)])[PROMPT])[0]
            starts.append((ids[-LONGEST:], every[int(i)]))
        starts = [s for s in starts if len(s[0]) >= self.model.shortest]
        if not starts:
            return
        made = draws(self.model, self.codec, starts, self.writing, int(rng.integers(1 << 30)), self.wishes.masks[1])
        for goal in goals:
            wished, key = self.wishes.free(goal), (goal, self.wishes.way(goal))
            if wished and key not in self.pools and not self.late():
                self.pools[key] = self.endings.varied(self._places(made, wished), goal, WIDTH)

    def _places(self, made: Draws, wished: list[int]) -> list[Scored]:
        within = not self.wishes.begins_word(wished)
        found = [(ids, e) for ids, e in made.places(wished, PLACES, LONGEST, within_word=within) if ids]
        if not found:
            return []
        score = score_of(
            self.model, [ids for ids, _ in found], [wished] * len(found), self.writing, self.wishes.masks[0]
        )
        return [(float(p), *each) for p, each in zip(score, found, strict=True)]

    def _near(self, goal: int, rng: np.random.Generator) -> list[Start]:
        """A quarter from the goal's frontier, the rest from anywhere in the corpus."""
        near = [i for i in self.frontier.best(goal) if i in self.corpus.place][: WIDTH // 4]
        every = list(self.corpus.place)
        near += [every[int(i)] for i in rng.integers(0, len(every), WIDTH - len(near))]
        return [(unpack(self.corpus.candidate(i)[PROMPT])[0], i) for i in near]

    # ------------------------------------------------------------------ the climb

    def _climbed(self, goal: int, way: int, before: list[Scored], rng: np.random.Generator) -> list[Scored]:
        """All prompts that were scored, best first, each once."""
        starts = [(ids, entry) for _, ids, entry in before] or self._near(goal, rng)
        key = self.corpus.place[starts[0][1]][0]  # a brood is of one width
        starts = [(ids, i) for ids, i in starts if self.corpus.place[i][0] == key and ids]
        if not starts:
            return []
        free = self.wishes.free(goal)
        apart = free is not None and self.wishes.begins_word(free)
        texts = [""] * len(starts) if free else self.write([ids for ids, _ in starts])
        longest = min(LONGEST, self._room(starts[0][1]))
        exchanger = Exchanger(self.codec, longest, self.model.shortest, apart=apart)
        rows: list[Row] = []
        for (ids, entry), text in zip(starts, texts, strict=True):
            if exchanger.fits(ids) and (wished := free or self.wishes.ids(goal, way, text)):
                rows.append((-np.inf, ids[-longest:], entry, wished, len(rows)))
        ascent = Ascent(
            self.model, self.writing, exchanger, self.wishes.masks[0], gradients=self.gradients, late=self.late
        )
        return ascent.climb(rows, rng)

    def _room(self, entry: int) -> int:
        """The width of the row that an entry is kept in."""
        return self.corpus.buckets[self.corpus.place[entry][0]].inputs[PROMPT].view.shape[1]

    # ------------------------------------------------------------------ what comes of it

    def _brood(self, pool: list[Scored]) -> Turn:
        entries = [entry for _, _, entry in pool]
        bucket: Bucket = self.corpus.buckets[self.corpus.place[entries[0]][0]]
        rows = np.array([self.corpus.place[e][1] for e in entries])
        anchors = bucket.anchors(self.text_space).take(torch.from_numpy(bucket.anchor_rows[rows]))
        x = pack([ids for _, ids, _ in pool], self._room(entries[0]))
        batch = self.text_space.project({PROMPT: x}, anchors)
        brood = Brood(batch, bucket, rows, [Group(self.name, slice(0, len(x)))], anchors, cost=COST)
        return Turn(brood, [], [], [])

    def to_json(self) -> dict[str, Any]:
        pools = [[goal, way, [list(each) for each in pool]] for (goal, way), pool in self.pools.items()]
        ways, taken = ([[g, n] for g, n in counts.items()] for counts in (self.wishes.ways, self.wishes.taken))
        return {
            "pools": pools,
            "ways": ways,
            "taken": taken,
            "endings": self.endings.to_json(),
            "trouble": self.trouble,
            "failures": self.failures,
        }

    def load(self, data: dict[str, Any]) -> None:
        self.pools = {(g, way): [(p, ids, e) for p, ids, e in pool] for g, way, pool in data.get("pools", [])}
        self.endings.load(data.get("endings", []))
        self.trouble, self.failures = data.get("trouble", ""), data.get("failures", 0)
        self.wishes.ways, self.wishes.taken = dict(data.get("ways", [])), dict(data.get("taken", []))
