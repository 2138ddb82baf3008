"""Pins: a user's constraints on a plan: degrees of axes, replicas, and the processors that nodes may use.

It does not know searches, nor what a layout costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod

from castile.planner.graph import Node
from castile.planner.strategy import Config, Names, check_split, runs_of
from castile.runtime.strict import hint, suggestion

REPLICAS, PROCS = "replicas", "procs"
_PIN = re.compile(r"\s*(?P<pattern>[^:{}\s]+)\s*:\s*\{(?P<body>[^{}]*)\}\s*")
_ENTRY = re.compile(r"\s*(?P<key>[A-Za-z_]\w*)\s*:\s*(?P<value>[0-9]{1,9}|[0-9-]{1,19}|\[[0-9, -]*\])\s*")
_RUN = re.compile(r"\s*(?P<first>[0-9]{1,6})(?:-(?P<last>[0-9]{1,6}))?\s*")
EXAMPLE = "write what is pinned as in 'h.*.attn: {h: 8}' or 'head: {b: 4, procs: 0-3}'"


@dataclass(frozen=True)
class Pin:
    """Constraints on the nodes whose names match a pattern.

    pattern      * stands for any text. Without a / it matches nodes of the graph only, not updates, accumulators and
                 fetches; the name of a node that was merged into another matches that one
    degrees      by axis; a node without an axis is not bound by its degree
    replicas     None for any number
    procs        the processors that may be used, None for all
    everywhere   whether it also binds the updates, accumulators and fetches that a plan names
    """

    pattern: str
    degrees: Mapping[str, int] = field(default_factory=dict)
    replicas: int | None = None
    procs: frozenset[int] | None = None
    everywhere: bool = False

    def __str__(self) -> str:
        entries = [f"{axis}: {degree}" for axis, degree in self.degrees.items()]
        entries += [f"{REPLICAS}: {self.replicas}"] if self.replicas is not None else []
        entries += [f"{PROCS}: [{runs_of(tuple(sorted(self.procs)))}]"] if self.procs is not None else []
        return f"{self.pattern}: {{{', '.join(entries)}}}"

    def binds(self, name: str, optional: bool) -> bool:
        """Whether it binds a node; optional nodes are updates, accumulators and fetches."""
        return (not optional or self.everywhere or "/" in self.pattern) and fnmatchcase(name, self.pattern)


def parse(text: str) -> Pin:
    """Parse a pin as users write it: `h.*.attn: {h: 8}`, `head: {b: 4, replicas: 2, procs: [0-3, 8-11]}`.

    Raises ValueError in one sentence for anything else.
    """
    found = _PIN.fullmatch(text)
    entries = re.split(r",(?![^\[]*\])", found["body"]) if found else []
    pairs = [entry and _ENTRY.fullmatch(entry) for entry in entries]
    if found is None or not all(pairs):
        raise ValueError(f"pin {text!r}: {EXAMPLE}")
    values = {pair["key"]: pair["value"] for pair in pairs if pair}
    if len(values) < len(pairs):
        raise ValueError(f"pin {text!r}: something is pinned twice")
    procs = values.pop(PROCS, None)
    numbers = {key: int(value) for key, value in values.items() if re.fullmatch(r"[0-9]{1,18}", value)}
    for key in values:
        if numbers.get(key, 0) < 1:
            raise ValueError(f"pin {text!r}: {key} should be a number of at least 1, not {values[key]}")
    where = None if procs is None else frozenset(parse_procs(procs.strip("[]"), f"pin {text!r}"))
    return Pin(found["pattern"], {k: v for k, v in numbers.items() if k != REPLICAS}, numbers.get(REPLICAS), where)


def parse_procs(text: str, who: str) -> tuple[int, ...]:
    """Parse a list of processors: `3,5` or `0-3,8`. Raises ValueError, beginning with `who`, for other text."""
    runs = [_RUN.fullmatch(run) for run in text.split(",")]
    procs: list[int] = []
    for run in runs:
        last = int(run["last"] or run["first"]) if run else -1
        if run is None or last < int(run["first"]):
            raise ValueError(f"{who}: {text!r} are no processors; list them as in 3,5 or 0-3,8")
        procs += range(int(run["first"]), last + 1)
    if len(set(procs)) < len(procs):
        raise ValueError(f"{who}: {text!r} names a processor twice")
    return tuple(procs)


def pinned(configs: Mapping[str, Config], pins: Pins | None) -> dict[str, Config]:
    """A plan's Configs changed to meet the pins; unchanged where there are none."""
    return dict(configs) if pins is None else pins.apply(configs)


def without(text: str, num_procs: int) -> Pin:
    """The pin that keeps everything off the processors that a user lists (`3,5`).

    Raises ValueError where they are not of the machine, or none would be left.
    """
    frozen = parse_procs(text, "--without")
    _check_procs(frozen, num_procs, "--without")
    rest = frozenset(range(num_procs)) - set(frozen)
    if not rest:
        raise ValueError(f"--without: {text!r} leaves none of {num_procs} to work on")
    return Pin("*", procs=rest, everywhere=True)


def _check_procs(procs: Iterable[int], num_procs: int, who: str) -> None:
    if out := [p for p in sorted(procs) if p >= num_procs]:
        raise ValueError(f"{who}: processor {out[0]} is out of range; the machine has {num_procs}, counted from 0")


@dataclass(frozen=True)
class Need:
    """The constraints of all pins on one node; replicas None for any number."""

    degrees: dict[str, int]
    replicas: int | None
    procs: tuple[int, ...]

    @cached_property
    def allowed(self) -> frozenset[int]:
        return frozenset(self.procs)

    def met(self, config: Config) -> bool:
        fits = self.replicas in (None, config.replicas) and self.allowed.issuperset(config.procs)
        return fits and all(config.degree(axis) == degree for axis, degree in self.degrees.items())


class Pins:
    """Pins on the nodes of a graph, for a machine of `num_procs` processors.

    Raises ValueError in one sentence where a pin matches no node or no axis, asks for what a node cannot have, or
    contradicts another.
    """

    def __init__(self, pins: Sequence[Pin], names: Names, num_procs: int) -> None:
        self.pins, self.num_procs = tuple(pins), num_procs
        self._nodes = {**names.optional, **names.nodes}
        bound: dict[str, list[Pin]] = {}
        for pin in pins:
            of_pin = [
                name
                for name, node in self._nodes.items()
                if any(pin.binds(each, name not in names.nodes) for each in (name, *node.members))
            ]
            self._check(pin, of_pin, names)
            for name in of_pin:
                bound.setdefault(name, []).append(pin)
        self._needs = {name: self._merged(name, of_name) for name, of_name in bound.items()}
        self._last: dict[str, Config] = {}
        # By default an update has the layout of its parameter's use; one that is pinned by name gets a Config.
        self._added = [
            name for name, of_name in bound.items()
            if name not in names.nodes and name.endswith("/update") and not all(pin.everywhere for pin in of_name)
        ]  # fmt: skip

    @cached_property
    def procs(self) -> tuple[int, ...]:
        """The processors that some node may use."""
        if len(self._needs) < len(self._nodes):
            return tuple(range(self.num_procs))
        return tuple(sorted({p for need in self._needs.values() for p in need.procs}))

    def need(self, name: str) -> Need | None:
        """The constraints on a node, None for none."""
        return self._needs.get(name)

    def meets(self, configs: Mapping[str, Config]) -> bool:
        """Whether a plan meets all constraints."""
        there = all(name in configs for name in self._added)
        return there and all(self.allows(name, config) for name, config in configs.items())

    def allows(self, name: str, config: Config) -> bool:
        """Whether a node may have a Config."""
        need = self._needs.get(name)
        return need is None or need.met(config)

    def apply(self, configs: Mapping[str, Config]) -> dict[str, Config]:
        """The Configs with those of pinned nodes changed as little as their constraints allow.

        An update that is pinned by name is added where it was left to its default.
        """
        whole = {name: Config() for name in self._added if name not in configs}
        # A search changes few Configs from plan to plan.
        last = self._last
        self._last = {
            name: config if config is last.get(name) or self.allows(name, config) else self._fitted(name, config)
            for name, config in {**configs, **whole}.items()
        }
        return dict(self._last)

    def _check(self, pin: Pin, names: Sequence[str], known: Names) -> None:
        """Raises ValueError where a pin matches no node, no axis or no processor."""
        if not names:
            near = hint(pin.pattern, [*known.nodes, *known.within])
            raise ValueError(f"pin '{pin}': no node has a name like {pin.pattern!r}{near}")
        axes = {axis: None for name in names for axis in self._nodes[name].alignment.axes}
        for axis in pin.degrees:
            if axis not in axes:
                near = suggestion(axis, list(axes))
                who = self._nodes[names[0]].full_name
                raise ValueError(f"pin '{pin}': {who} has no axis {axis!r}{near}; there are {', '.join(axes)}")
        _check_procs(pin.procs or (), self.num_procs, f"pin '{pin}'")

    def _merged(self, name: str, pins: Sequence[Pin]) -> Need:
        """The constraints of several pins on a node. Raises ValueError where it cannot meet them."""
        node = self._nodes[name]
        asked = [(a, d, pin) for pin in pins for a, d in pin.degrees.items() if a in node.alignment.axes]
        asked += [(REPLICAS, pin.replicas, pin) for pin in pins if pin.replicas is not None]
        first: dict[str, tuple[int, Pin]] = {}
        for key, number, pin in asked:
            known, other = first.setdefault(key, (number, pin))
            if known != number:
                raise ValueError(f"{name}: pin '{other}' contradicts pin '{pin}'; leave one of them out")
        numbers = {key: number for key, (number, _) in first.items()}
        replicas = numbers.pop(REPLICAS, None)
        procs = set(range(self.num_procs)).intersection(*(pin.procs for pin in pins if pin.procs is not None))
        quoted = " and ".join(f"'{pin}'" for pin in pins)
        if len(procs) < (replicas or 1):
            raise ValueError(f"{name}: too few processors are left for {replicas or 1} replicas by pins {quoted}")
        try:
            check_split(node, numbers)
        except ValueError as error:
            raise ValueError(f"pin {quoted}: {error}") from error
        return Need(numbers, replicas, tuple(sorted(procs)))

    def _fitted(self, name: str, config: Config) -> Config:
        """A Config near another one that meets the node's need: degrees that are not pinned shrink until all fit."""
        need = self._needs[name]
        split = self._split(self._nodes[name], need, config)
        parts = prod(split.values())
        replicas = need.replicas or max(1, min(config.replicas, len(need.procs) // parts))
        if (
            replicas == config.replicas
            and len(config.procs) == parts * replicas
            and need.allowed.issuperset(config.procs)
        ):
            return Config(split, replicas, config.procs)
        # The node stays on the processors that it used, where there are enough of these.
        used = [p for p in dict.fromkeys(config.procs) if p in need.allowed]
        pool = used if len(used) >= min(parts * replicas, len(need.procs)) else need.procs
        return Config(split, replicas, tuple(pool[i % len(pool)] for i in range(parts * replicas)))

    def _split(self, node: Node, need: Need, config: Config) -> dict[str, int]:
        split = {axis: need.degrees.get(axis, config.degree(axis)) for axis in node.alignment.axes}
        room = len(need.procs) // (need.replicas or 1)
        is_crossed = any(degree > 1 for degree in need.degrees.values())
        for axis in reversed(split):
            if axis not in need.degrees and (parts := prod(split.values())) > room:
                most = max(1, min(split[axis], room * split[axis] // parts))
                # Beside a pinned degree a divisor, so that parts nest in those of neighbours; else the most that fit.
                split[axis] = max(n for n in range(1, most + 1) if not is_crossed or split[axis] % n == 0)
        return {axis: degree for axis, degree in split.items() if degree > 1}
