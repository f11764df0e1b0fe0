"""Who reads what in a flat program."""

from __future__ import annotations

from .steps import FlatProgram, Slot, Step


def tail_of(program: FlatProgram) -> set[int]:
    """Slots without width axes that meet only linear steps on their way out."""
    readers: dict[int, list[Step]] = {}
    for step in program.steps:
        for operand in step.operands:
            if isinstance(operand, Slot):
                readers.setdefault(operand.index, []).append(step)
    outputs = {operand.index for operand in program.outputs if isinstance(operand, Slot)}
    tail: set[int] = set()
    for step in reversed(program.steps):
        for slot in step.results:
            if slot.wide_axes:
                continue
            users = readers.get(slot.index, [])
            linear = all(
                user.record.linear and all(r.index in tail for r in user.results) for user in users
            )
            if linear and (users or slot.index in outputs):
                tail.add(slot.index)
    return tail


def live_slots(program: FlatProgram) -> set[int]:
    """Slots that the outputs depend on."""
    live = {operand.index for operand in program.outputs if isinstance(operand, Slot)}
    for step in reversed(program.steps):
        if any(slot.index in live for slot in step.results):
            live |= {operand.index for operand in step.operands if isinstance(operand, Slot)}
    return live


def last_uses(program: FlatProgram) -> dict[int, list[int]]:
    """Which values are not needed after a step."""
    last: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        for operand in step.operands:
            if isinstance(operand, Slot):
                last[operand.index] = number
    kept = {operand.index for operand in program.outputs if isinstance(operand, Slot)}
    ends: dict[int, list[int]] = {}
    for index, number in last.items():
        if index not in kept:
            ends.setdefault(number, []).append(index)
    return ends
