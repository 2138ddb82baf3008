"""A file's network becomes a graph of castile: its nodes one after another, each by what handles its operator.

It does not know operators, nor what is trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from castile.launch.importers.onnx import operators, sampled, shaping
from castile.launch.importers.onnx.bodies import body, inlined, kind, with_whole_numbers
from castile.launch.importers.onnx.file import numbers, package
from castile.launch.importers.onnx.folding import MOVES, Folding
from castile.launch.importers.onnx.values import Form, Known, Uncomputed, Unsupported, Value, Whole, known, steps
from castile.planner.bodies.vocabulary import wide
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

# What gives other numbers each time.
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
# What gives no array, or holds a graph that may read what depends on samples.
NOT_FOLDED = (*RANDOM, "SplitToSequence", "Loop", "Scan")
# What tells of a weight what does not change in training.
TELLING = ("Shape", "Size")


@dataclass
class Call:
    """A node of the file while it is handled.

    name      what its result is called in castile's graph
    version   of the file's operators
    args      its inputs, None for one that is left out
    results   how many outputs somebody reads, from the first
    """

    net: Network
    name: str
    op: str
    version: int
    args: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    results: int
    _asked: set[str | int] = field(default_factory=set)

    @property
    def g(self) -> Graph:
        return self.net.graph

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        self._asked.add(name)
        return self.attributes.get(name, default)

    def has(self, number: int) -> bool:
        """Whether an input is given."""
        self._asked.add(number)
        return number < len(self.args) and self.args[number] is not None

    def value(self, number: int) -> Value:
        """An input. Raises Unsupported where it is left out."""
        found = self.args[number] if self.has(number) else None
        if found is None:
            raise Unsupported(f"without its input {number + 1}")
        return found.tensor if isinstance(found, Whole) else found

    def kind(self, number: int) -> np.dtype:
        """What numbers an input has in the file."""
        return kind(self.args[number])

    def shape(self, number: int) -> tuple[int, ...]:
        return self.value(number).shape

    def tensor(self, number: int) -> Tensor:
        """An input as a tensor: known numbers become a parameter where they are learned, else stay as they are."""
        return self.net.operand(self.value(number))

    def floating(self, number: int) -> Tensor:
        """An input as a tensor of floating-point numbers, which whole ones, that are never trained, become."""
        if isinstance(found := self.value(number), Known) and not found.is_floating:
            as_real = replace(found, learned=False).derived
            found = as_real("", found.shape, lambda array: array.astype(np.float64), np.dtype(np.float64))
        return self.net.real(self.net.operand(found))

    def known(self, number: int, default: Any = None) -> Any:
        """The numbers of an input. Raises Unsupported where they depend on samples, or are trained."""
        if not self.has(number):
            return default
        found = self.value(number)
        if not isinstance(found, Known):
            raise Unsupported(f"with an input {number + 1} that depends on samples")
        if self.net.noted and self.net.is_trained(found):
            raise Unsupported(f"with an input {number + 1}, {found.name!r}, that is trained")
        return found.array

    def scalar(self, number: int) -> float | None:
        """The one number of an input that is known, has no more and stays as it is; None for others."""
        found = self.value(number)
        if not isinstance(found, Known) or found.size != 1 or self.net.is_trained(found):
            return None
        return float(found.array.reshape(()))

    def weight(self, number: int, axes: str, init: Init, form: Callable[[Known], Known] = lambda w: w) -> Tensor:
        """An input as a parameter, its dims so named, or a constant where it is a filler.

        form   how the numbers of the file make those of the parameter
        Raises Unsupported where it depends on samples.
        """
        found = self.value(number)
        if not isinstance(found, Known):
            raise Unsupported(f"with an input {number + 1}, its weight, that depends on samples")
        if found.is_filler:
            return self.net.constant(form(found), tuple(axes.split()))
        return self.net.parameter(form(found), tuple(axes.split()), init)

    def check(self) -> None:
        """Raises Unsupported where something was given that nobody asked for."""
        if unread := [name for name in self.attributes if name not in self._asked]:
            raise Unsupported(f"with {unread[0]}")
        if more := [n for n, one in enumerate(self.args) if one is not None and n not in self._asked]:
            raise Unsupported(f"with an input {more[0] + 1}")

    def inner(self, label: str) -> str:
        """A name for a node within this one."""
        return self.net.name(f"{self.name}.{label}")


@dataclass
class Network:
    """A graph under construction.

    path        of the file
    batch       samples a step, and `file_batch`, how many the file itself says, 0 where it leaves that open
    training    whether it is to be trained, or evaluated
    frozen      says whether the weight of a name is not trained
    noted       whether the file says what is trained
    values      by their names in the file; None for what is not supported or depends on such
    sources     where the numbers of parameters and states are, by castile's names
    lacking     what is not supported: an operator, in which way, and the first node of it
    """

    path: str
    graph: Graph
    batch: int
    file_batch: int
    training: bool
    opsets: Mapping[str, int]
    frozen: Callable[[str], bool] = lambda name: False
    noted: bool = False
    values: dict[str, Value | None] = field(default_factory=dict)
    sources: dict[str, Known] = field(default_factory=dict)
    lacking: dict[tuple[str, str], str] = field(default_factory=dict)
    _params: dict[str, Known] = field(default_factory=dict)
    _moved: dict[tuple[str, Form], Tensor] = field(default_factory=dict)
    _real: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)

    def name(self, text: str) -> str:
        """A name for a node or tensor of castile's, which nothing else bears: letters, digits, _ and - with dots."""
        base = re.sub(r"[^\w\-]+", ".", text).strip(".") or "node"
        found, number = base, 1
        while found in self._taken:
            number += 1
            found = f"{base}.{number}"
        self._taken.add(found)
        return found

    def input(self, name: str, called: str, shape: tuple[int, ...], axes: str, kind: np.dtype, dtype: str = "") -> None:
        """An input of the file, where it has numbers of that kind, is one of the graph."""
        made = self.graph.input(self.name(called), shape, axes, dtype or ("int32" if kind.kind != "f" else None))
        self.values[name] = Whole(made, kind) if kind.kind == "b" else made

    def add(self, nodes: Iterable[Any], outputs: Sequence[str] = ()) -> None:
        """Nodes of the file, in their order; those that give `outputs` are called so."""
        nodes = list(nodes)
        self._read.update(outputs, *(node.input for node in nodes))
        for node in nodes:
            named = next((name for name in node.output if name in outputs), node.name or node.output[0])
            self._add(node, named)

    def _add(self, node: Any, named: str) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        if any(name and self.values[name] is None for name in node.input):
            self._give(node, None)
        elif node.op_type == "If" and isinstance(inputs[0], Known):
            self._branch(node, bool(inputs[0].array))
        elif all(isinstance(one, Known) for one in inputs if one is not None) and node.op_type not in NOT_FOLDED:
            fold = Folding(self.path, self.opsets, self.batch, self.file_batch, self.noted)
            try:
                self._give(node, self._followed(node, named, inputs, fold.folded(node, inputs)))
            except Unsupported as error:
                self._lack(node, error)
        else:
            self._handle(node, named, tuple(inputs))

    def _branch(self, node: Any, which: bool) -> None:
        """The one of two graphs within a node that is known to be taken."""
        name = "then_branch" if which else "else_branch"
        (taken,) = [attribute.g for attribute in node.attribute if attribute.name == name]
        for tensor in taken.initializer:
            self.values[tensor.name] = numbers(tensor, self.path, learned=True)
        self.add(taken.node, [one.name for one in taken.output])
        self._give(node, [self.values[one.name] for one in taken.output])

    def _give(self, node: Any, found: Any) -> None:
        each = found if isinstance(found, tuple | list) else (found,)
        for n, name in enumerate(node.output):
            if name:
                self.values[name] = each[n] if n < len(each) else None

    def _handled(self, node: Any, named: str, args: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """What handles a node's operator makes of it. Raises ValueError where nothing does, or it cannot."""
        handler = operators.find(node.op_type) if node.domain in ("", "ai.onnx") else None
        if handler is None:
            raise Unsupported("")
        attributes = {a.name: package().helper.get_attribute_value(a) for a in node.attribute}
        results = max((n for n, name in enumerate(node.output, start=1) if name in self._read), default=1)
        call = Call(self, self.name(named), node.op_type, self._version(node), args, attributes, results)
        made = handler(call)
        call.check()
        return with_whole_numbers(node, self._version(node), args, made if isinstance(made, tuple) else (made,))

    def _version(self, node: Any) -> int:
        """The version of a node's operator."""
        return self.opsets.get(node.domain, self.opsets.get("", 1))

    def is_trained(self, value: Value) -> bool:
        """Whether known numbers are trained, or computed of such, and where the file says so frozen ones: all
        parameters are there under their names, whichever are frozen."""
        return isinstance(value, Known) and value.is_weight and (self.noted or not self.frozen(value.name))

    def _followed(self, node: Any, named: str, inputs: Sequence[Any], made: list[Known]) -> list[Known]:
        """Known numbers that, where they are used, are computed in the graph of the weights that a node takes."""
        # of the array that others are to be like only the kind matters
        trained = [one for one in (inputs[:1] if node.op_type == "CastLike" else inputs) if self.is_trained(one)]
        if not trained or node.op_type in (*MOVES, "Identity", *TELLING):
            return made
        weights = tuple(dict.fromkeys(name for one in trained for name in one.origins))
        stays = all(map(self.frozen, weights))
        if self.noted and not stays and not all(one.is_floating for one in made):
            raise Unsupported(f"of the weight {', '.join(map(repr, weights))}, which is trained, to whole numbers")
        results = cache(partial(self._computed, node, named, tuple(inputs), weights))

        def tensor(number: int) -> Tensor:
            with suppress(Uncomputed) if stays else nullcontext():
                return self.operand(results()[number])
            return self.operand(made[number])

        return [
            replace(one, learned=True, follow=partial(tensor, n), weights=weights) if one.is_floating else one
            for n, one in enumerate(made)
        ]

    def _computed(self, node: Any, named: str, args: tuple[Value | None, ...], weights: Sequence[str]) -> Any:
        """What a node makes of weights. Raises Uncomputed where castile cannot."""
        try:
            return self._made(node, named, tuple(map(self._as_they_are, args)))
        except Uncomputed:
            raise
        except ValueError as error:
            what = f"of the weight {', '.join(map(repr, weights))}"
            raise Uncomputed(node, f"{error}, {what}" if str(error) else what) from error

    def _as_they_are(self, value: Value | None) -> Value | None:
        """Weights that are moved first, so that the parameter is as the file has it."""
        if not isinstance(value, Known) or value.follow is not None or not value.form or not self.is_trained(value):
            return value
        return replace(value, follow=partial(self.operand, value.unmoved), weights=(value.name,))

    def _handle(self, node: Any, named: str, args: tuple[Value | None, ...]) -> None:
        try:
            self._give(node, self._made(node, named, args))
        except ValueError as error:
            plain = tuple(map(self._as_numbers, args))
            return self._lack(node, error) if plain == args else self._handle(node, named, plain)

    def _as_numbers(self, value: Value | None) -> Value | None:
        """What is made of frozen weights alone, where an operator wants numbers: as what it is, and stays."""
        if isinstance(value, Known) and self.is_trained(value) and all(map(self.frozen, value.origins)):
            return replace(value, learned=False, follow=None, weights=())
        return value

    def _made(self, node: Any, named: str, args: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        """What handles a node makes of it, or else what others make with which the rules of ONNX write it.

        Raises ValueError where neither can.
        """
        try:
            return self._handled(node, named, args)
        except ValueError:
            written, before = body(node, self._version(node), args), dict(self.lacking)
            if written is None:
                raise
            self._expand(node, named, written)
            if self.lacking != before:
                self.lacking = before
                raise
            return tuple(self.values[name] if name else None for name in node.output)

    def _lack(self, node: Any, error: ValueError) -> None:
        at = error.node if isinstance(error, Uncomputed) else node
        self.lacking.setdefault((at.op_type, str(error)), at.name or at.output[0])
        self._give(node, None)

    def _expand(self, node: Any, named: str, written: Any) -> None:
        """A node whose operator the rules of ONNX write with others."""
        parts = inlined(node, named, written)
        self._read.update(*(part.input for part in parts))
        for part in parts:
            self._add(part, named if set(part.output) & set(node.output) else part.output[0])

    def operand(self, value: Value, dtype: str | None = None) -> Tensor:
        """A value as a tensor: weights are parameters, other known numbers, of that dtype, are carried unchanged."""
        if isinstance(value, Tensor | Whole):
            return value if isinstance(value, Tensor) else value.tensor
        if not isinstance(value, Known):
            raise Unsupported(value.refusal)
        axes = tuple(f"d{n}" for n in range(len(value.shape)))
        if self.is_trained(value):
            wide = sum(length > 1 for length in value.shape)
            return self.parameter(value, axes, Init("normal", 0.02) if wide > 1 else Init("zeros"))
        one = sampled.once(value, self.batch)
        held = self.constant(one, axes, dtype)
        return held if one is value else self.graph.expand(self.name(f"{value.name}.each"), held, value.shape)

    def real(self, x: Tensor) -> Tensor:
        """A tensor as floating-point numbers; of whole ones the same wherever they are asked for."""
        if not x.floating and x.name not in self._real:
            self._real[x.name] = self.graph.real(self.name(f"{x.name}.real"), x)
        return x if x.floating else self._real[x.name]

    def parameter(self, value: Known, axes: tuple[str, ...], init: Init) -> Tensor:
        """The parameter of known numbers, the same for the same, or what is computed of others.

        Raises Unsupported where they are one already, of other elements.
        """
        if value.follow is not None:
            return self._in_form(value.follow(), (), value)
        if self.noted and not value.learned:
            return self.constant(value, axes)
        if self.is_other(value):
            there = self._params[value.name]
            if there.unmoved.shape != value.unmoved.shape:
                raise Unsupported(f"with the weight {value.name!r} in another form than elsewhere")
            return self._in_form(self.graph.tensors[self._names[value.name]], there.form, value)
        self._params[value.name] = value
        if value.name not in self._names:
            self._names[value.name] = self.name(value.name)
        name = self._names[value.name]
        self.sources[name] = value
        return self.graph.param(name, value.shape, axes, init)

    def is_other(self, value: Known) -> bool:
        """Whether the numbers are there already, in another form."""
        if value.follow is not None:
            return value.form != ()
        there = self._params.get(value.name)
        return there is not None and (there.form, there.shape) != (value.form, value.shape)

    def _in_form(self, x: Tensor, form: Form, value: Known) -> Tensor:
        """x, the numbers of a value with its dims moved as `form` says, with them moved as the value has them."""
        key = x.name, steps(form, value.form)
        if key not in self._moved:
            self._moved[key] = shaping.moved(self.graph, self.name(f"{value.name}.moved"), x, key[1])
        return self._moved[key]

    def indices(self, name: str, places: np.ndarray) -> Tensor:
        """Whole numbers that tell rows of a table, carried from step to step as they are."""
        found, axes = self.name(name), tuple(f"d{n}" for n in range(places.ndim))
        self.sources[found] = known(found, places.astype(np.int32))
        given = Init("given", values=self.sources[found].array)
        return self.graph.state(found, places.shape, axes, given, dtype="int32")

    def kept(self, value: Known) -> str:
        """A name for running statistics that begin otherwise than in the file."""
        name = self._names[value.name] = self.name(value.name)
        self.sources[name] = value
        return name

    def constant(self, value: Known, axes: tuple[str, ...], dtype: str | None = None) -> Tensor:
        """Known numbers as a tensor that is carried from step to step and stays as it is."""
        if not value.is_floating:
            raise Unsupported("with whole numbers that are no indices")
        key = f"{value.name}={dtype or wide(self.graph.dtype)}"
        name = self._names.get(key)
        if name is not None and self.graph.tensors[name].shape == value.shape:
            return self.graph.tensors[name]
        name = self.name(value.name)
        found = self.graph.state(name, value.shape, axes, Init("given", values=value.array), dtype=dtype)
        self._names[key], self.sources[name] = name, value
        return found
