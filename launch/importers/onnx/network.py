"""A file's network becomes a graph of castile: its nodes one after another, each by what handles its operator.

It does not know operators, nor what is trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from castile.launch.importers.onnx import operators, sampled
from castile.launch.importers.onnx.file import numbers, package
from castile.launch.importers.onnx.folding import Folding
from castile.launch.importers.onnx.values import Erf, Known, Several, Unsupported, Value
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

# What makes other arrays of a weight, with the same numbers: they follow the weight while it is trained.
PICKS = ("Expand", "Gather", "Slice", "Split", "Concat", "Tile")
# What gives other numbers each time.
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
# What gives no array, or holds a graph that may read what depends on samples.
NOT_FOLDED = (*RANDOM, "SplitToSequence", "Loop", "Scan")


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
        return found

    def shape(self, number: int) -> tuple[int, ...]:
        return self.value(number).shape

    def tensor(self, number: int) -> Tensor:
        """An input as a tensor: known numbers become a parameter where they are learned, else stay as they are."""
        return self.net.operand(self.value(number))

    def known(self, number: int, default: Any = None) -> Any:
        """The numbers of an input. Raises Unsupported where they depend on samples."""
        if not self.has(number):
            return default
        found = self.value(number)
        if not isinstance(found, Known):
            raise Unsupported(f"with an input {number + 1} that depends on samples")
        return found.array

    def scalar(self, number: int) -> float | None:
        """The one number of an input that is known and has no more; None for others."""
        found = self.value(number)
        return float(found.array.reshape(())) if isinstance(found, Known) and found.size == 1 else None

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
    batch       samples a step, and `told`, how many the file itself says, 0 where it leaves that open
    training    whether it is to be trained, or evaluated
    frozen      says whether the weight of a name is not trained
    values      by their names in the file; None for what is not supported or depends on such
    sources     where the numbers of parameters and states are, by castile's names
    lacking     what is not supported: an operator, in which way, and the first node of it
    """

    path: str
    graph: Graph
    batch: int
    told: int
    training: bool
    opsets: Mapping[str, int]
    frozen: Callable[[str], bool] = lambda name: False
    values: dict[str, Value | None] = field(default_factory=dict)
    sources: dict[str, Known] = field(default_factory=dict)
    lacking: dict[tuple[str, str], str] = field(default_factory=dict)
    _params: dict[str, Known] = field(default_factory=dict)
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

    def input(self, name: str, called: str, shape: tuple[int, ...], axes: str, dtype: str | None) -> None:
        """An input of the file is one of the graph."""
        self.values[name] = self.graph.input(self.name(called), shape, axes, dtype)

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
            fold = Folding(self.path, self.opsets, self.batch, self.told)
            try:
                self._give(node, self._followed(node, named, inputs, fold.folded(node, inputs)))
            except Unsupported as error:
                self._lack(node, str(error))
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
        return made if isinstance(made, tuple) else (made,)

    def _version(self, node: Any) -> int:
        """The version of a node's operator."""
        return self.opsets.get(node.domain, self.opsets.get("", 1))

    def _followed(self, node: Any, named: str, inputs: Sequence[Any], made: list[Known]) -> list[Known]:
        """Known numbers that, where they are used as weights, follow the weight that a node takes them from."""
        if node.op_type not in PICKS or not any(one is not None and one.learned for one in inputs):
            return made
        results = cache(partial(self._handled, node, named, tuple(inputs)))

        def tensor(number: int) -> Tensor:
            return self.operand(results()[number])

        return [replace(one, follow=partial(tensor, n)) for n, one in enumerate(made)]

    def _handle(self, node: Any, named: str, args: tuple[Value | None, ...]) -> None:
        """A node by what handles it, or else by others with which the rules of ONNX write it."""
        try:
            self._give(node, self._handled(node, named, args))
            return
        except ValueError as error:
            how = str(error)
        body, before = _body(node, self._version(node), args), dict(self.lacking)
        if body is not None:
            self._expand(node, named, body)
        if body is None or self.lacking != before:
            self.lacking = before
            self._lack(node, how)

    def _lack(self, node: Any, how: str) -> None:
        self.lacking.setdefault((node.op_type, how), node.name or node.output[0])
        self._give(node, None)

    def _expand(self, node: Any, named: str, body: Any) -> None:
        """A node whose operator the rules of ONNX write with others."""
        inside = {"": ""}
        for formal, actual in zip(body.input, [*node.input, *[""] * len(body.input)], strict=False):
            inside[formal] = actual
        inside.update(zip(body.output, node.output, strict=False))
        given = {a.name: a for a in node.attribute}
        self._read.update(f"{named}.{name}" for part in body.node for name in part.input)
        for part in body.node:
            for name in part.output:
                inside.setdefault(name, f"{named}.{name}")
            copy = type(part)()
            copy.CopyFrom(part)
            del copy.input[:], copy.output[:], copy.attribute[:]
            copy.input.extend(inside[name] for name in part.input)
            copy.output.extend(inside[name] for name in part.output)
            copy.attribute.extend(_attributes(part, given))
            self._add(copy, named if set(part.output) & set(body.output) else f"{named}.{part.output[0]}")

    def operand(self, value: Value) -> Tensor:
        """A value as a tensor: weights are parameters, other known numbers are carried and never change."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Erf):
            raise Unsupported("of what Erf gives, which castile has in x * 0.5 * (1 + erf(x / sqrt(2))) alone")
        if isinstance(value, Several):
            raise Unsupported("of a sequence")
        axes = tuple(f"d{n}" for n in range(len(value.shape)))
        if value.learned and value.is_floating and value.size > 1 and not self.frozen(value.name):
            if value.follow is not None:
                return value.follow()
            wide = sum(length > 1 for length in value.shape)
            return self.parameter(value, axes, Init("normal", 0.02) if wide > 1 else Init("zeros"))
        one = sampled.once(value, self.batch)
        held = self.constant(one, axes)
        return held if one is value else self.graph.expand(self.name(f"{value.name}.each"), held, value.shape)

    def parameter(self, value: Known, axes: tuple[str, ...], init: Init) -> Tensor:
        """The parameter of known numbers; the same for the same.

        Raises Unsupported where they are one already in another form.
        """
        if self.is_other(value):
            raise Unsupported(f"with the weight {value.name!r} in another form than elsewhere")
        self._params[value.name] = value
        if value.name not in self._names:
            self._names[value.name] = self.name(value.name)
        name = self._names[value.name]
        self.sources[name] = value
        return self.graph.param(name, value.shape, axes, init)

    def is_other(self, value: Known) -> bool:
        """Whether the numbers are a parameter already, in another form."""
        there = self._params.get(value.name)
        return there is not None and (there.form, there.shape) != (value.form, value.shape)

    def kept(self, value: Known) -> str:
        """A name for running statistics that begin otherwise than in the file."""
        name = self._names[value.name] = self.name(value.name)
        self.sources[name] = value
        return name

    def constant(self, value: Known, axes: tuple[str, ...]) -> Tensor:
        """Known numbers as a tensor that is carried from step to step and stays as it is."""
        if not value.is_floating:
            raise Unsupported("with whole numbers that are no indices")
        name = self._names.get(value.name + "=")
        if name is not None and self.graph.tensors[name].shape == value.shape:
            return self.graph.tensors[name]
        name = self.name(value.name)
        found = self.graph.state(name, value.shape, axes, Init("given", values=value.array))
        self._names[value.name + "="], self.sources[name] = name, value
        return found


def _body(node: Any, version: int, args: Sequence[Value | None]) -> Any:
    """How the rules of ONNX write an operator with others; None where they do not."""
    onnx = package()
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return _plain(schema.function_body)
    if not schema.has_context_dependent_function:
        return None
    types = [_type(one).SerializeToString() if one is not None else b"" for one in args]
    try:
        made = schema.get_context_dependent_function(node.SerializeToString(), types)
    except Exception:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(made)
    return _plain(body)


def _plain(body: Any) -> Any:
    """A body without graphs within its nodes, which see names from outside; None for others."""
    inside = any(attribute.HasField("g") for node in body.node for attribute in node.attribute)
    return body if body.node and not inside else None


def _type(value: Value) -> Any:
    onnx = package()
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return onnx.helper.make_tensor_type_proto(code, value.shape)


def _attributes(part: Any, given: Mapping[str, Any]) -> list[Any]:
    """The attributes of a node of a function's body, where some are the function's own."""
    found = []
    for attribute in part.attribute:
        if not attribute.ref_attr_name:
            found.append(attribute)
        elif attribute.ref_attr_name in given:
            copy = type(attribute)()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            found.append(copy)
    return found
