"""Inputs and weights in turn: the batch that is searched is the batch that is trained on."""

import torch
from programs import INPUTS, linear, log_softmax, log_softmax_by_hand, rows, sgd

from nnfuzz.training.in_turn import InTurn
from nnfuzz.training.lens import Lens
from nnfuzz.training.program import Program, make_program
from nnfuzz.training.renewal import EVERY, Renewal
from nnfuzz.training.replay import retrace
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk


def prepared(loss) -> tuple[Program, Stream, Lens]:
    program = make_program(linear, loss, rows, sgd, INPUTS)
    stream, lens = Stream(program, 0), Lens(program)
    scout = Scout(stream, lens, [])
    lens.survey(Walk(program, 0).model, scout.batch, scout.rows)
    return program, stream, lens


def arm_of(program: Program, stream: Stream, lens: Lens) -> InTurn:
    target, *others = lens.targets.values()
    return InTurn(Walk(program, 0), stream, lens, target, others)


def test_it_finds_a_planted_bug_in_few_steps_and_the_steps_replay():
    program, stream, lens = prepared(log_softmax_by_hand)
    arm = arm_of(program, stream, lens)
    hit = next(h for _ in range(60) if (h := arm.round()))
    seen = retrace(program, hit.walk.seed, hit.walk.initial, hit.steps, hit.failure.mode)
    assert seen is not None
    assert seen.failure.symptom == hit.failure.symptom
    for step in hit.steps:
        assert bool(((step.batch["x"] >= 0) & (step.batch["x"] <= 10)).all())
        assert torch.equal(step.batch["y"], stream.first["y"])


def test_inputs_are_what_brings_it_there():
    """Training alone, on the same batch for as many steps, does not come as near."""
    program, stream, lens = prepared(log_softmax_by_hand)
    arm = arm_of(program, stream, lens)
    for _ in range(20):
        if arm.round():
            break
    plain = Walk(program, 0)
    for _ in range(arm.rounds):
        plain.train(stream.first)
    target = next(iter(lens.targets.values()))
    read = lens.read(plain.model, stream.first, stream.rows, [target])
    assert arm.near < float(read[target.name].detach().min())


def test_a_loss_without_a_dangerous_operation_gives_it_nothing_to_aim_at():
    _, _, lens = prepared(log_softmax)
    assert not [t for t in lens.targets.values() if t.op == "log"]


def test_rows_are_renewed_in_turn_and_only_when_it_is_time():
    def many(seed):
        return rows(seed, count=40)

    program = make_program(linear, log_softmax_by_hand, many, sgd, INPUTS)
    stream = Stream(program, 0)
    renew = Renewal(stream, program)
    assert renew(stream[0], EVERY + 1) is None
    once = renew(stream[0], EVERY)
    twice = renew(once, 2 * EVERY)
    changed = [int((b["x"] != stream[0]["x"]).any(1).sum()) for b in (once, twice)]
    assert changed == [2, 4]
    assert torch.equal(once["x"][:2], stream[1]["x"][:2])
