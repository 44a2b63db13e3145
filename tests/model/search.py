"""Histories played and searched for violations: which seeds break which rule, and the smallest history that does."""

import multiprocessing
import sys
from collections import Counter, defaultdict
from functools import partial
from typing import Final

from tests.model.history import History, reduced
from tests.model.play import DRAWN, World, play
from tests.model.truth import Violation

_CHUNK: Final = 50


def broken(history: History, world: type[World] = World) -> Violation | None:
    try:
        play(history, world)
    except Violation as violation:
        return violation
    return None


def smallest(history: History, rule: str, world: type[World] = World) -> Violation:
    def fails(smaller: History) -> bool:
        violation = broken(smaller, world) if world.can_play(smaller) else None
        return violation is not None and violation.rule == rule

    violation = broken(reduced(history, fails), world)
    assert violation is not None
    return violation


def violated(seeds: range, world: type[World] = World) -> str:
    """The first of these seeds that breaks a rule, and the smallest history that does; nothing if none does."""
    for seed in seeds:
        history = world.drawn(seed)
        violation = broken(history, world)
        if violation is not None:
            return f"seed {seed}: {smallest(history, violation.rule, world)}"
    return ""


def _chunk(world: type[World], seeds: range) -> tuple[list[tuple[int, str]], Counter[tuple[str, str]]]:
    DRAWN.clear()
    found = [(seed, broken(world.drawn(seed), world)) for seed in seeds]
    return [(seed, violation.rule) for seed, violation in found if violation is not None], DRAWN


def search(
    seeds: range, jobs: int, world: type[World] = World
) -> tuple[dict[str, list[int]], Counter[tuple[str, str]]]:
    """The seeds that break each rule, and what was drawn how often; progress goes to stderr."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    by_rule: defaultdict[str, list[int]] = defaultdict(list)
    drawn = Counter[tuple[str, str]]()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, (found, odd) in enumerate(pool.imap(partial(_chunk, world), chunks), 1):
            drawn += odd
            for seed, rule in found:
                by_rule[rule].append(seed)
            counts = ", ".join(f"{rule} {len(of_rule)}" for rule, of_rule in by_rule.items())
            played = min(done * _CHUNK, len(seeds))
            print(f"\r{played:,} of {len(seeds):,} histories: {counts or 'no violation'}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return by_rule, drawn
