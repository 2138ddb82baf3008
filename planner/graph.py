"""Operator graphs: what is computed, before anyone asks where.

A graph does not know strategies, machines or optimizers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import msgspec
import numpy as np

from castile.planner import layers
from castile.planner import op as operators
from castile.planner.axes import Alignment, Operand, canonical, dims_over
from castile.planner.bodies import promises
from castile.planner.bodies.trace import Spec, record
from castile.planner.bodies.vocabulary import wide
from castile.planner.op import Init, Op, Part, Tensor
from castile.runtime.strict import suggestion

# These stand only in names that plans derive from those of tensors (fc.weight/grad, image@0:2).
MARKS = ("/", "@")


class Node(msgspec.Struct, frozen=True):
    """An operator applied: inputs and outputs are names of tensors; the first output has the node's name.

    members   names of the nodes that a rewrite merged into this one
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    alignment: Alignment
    members: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The node's name, with those of its members."""
        return f"{self.name} (with {', '.join(self.members)})" if self.members else self.name

    def results_over(self, axis: str) -> dict[str, int]:
        """The results that have a dim over an axis, with that dim's number, as `axes.dims_over` finds them."""
        return dims_over(axis, self.outputs, self.alignment.results)

    def whole(self) -> Part:
        """The part that is the whole node."""
        return Part(self.op, self.alignment, {a: (0, n) for a, n in self.alignment.extents.items()})


def with_orders(node: Node, orders: Mapping[str, tuple[int, ...]]) -> Node:
    """The node with the dims of its tensors in these orders in memory; a tensor without one keeps that of its dims."""
    a = node.alignment

    def ordered(every: Sequence[Operand], names: Sequence[str]) -> tuple[Operand, ...]:
        rows = zip(every, names, strict=True)
        return tuple([msgspec.structs.replace(own, order=orders.get(name, ())) for own, name in rows])

    operands, results = ordered(a.operands, node.inputs), ordered(a.results, node.outputs)
    return msgspec.structs.replace(node, alignment=canonical(replace(a, operands=operands, results=results)))


@dataclass
class Graph:
    """Nodes in topological order and the tensors between them; layers come by name: g.linear("fc", x, features=10).

    inputs    data that the host provides at each step; their first axis is the sample axis
    scalars   numbers that the host provides at each step, such as "noise", drawn anew from seed and step
    states    tensors carried from step to step that no optimizer moves (running statistics)
    updates   by state the node that computes its next value, after a training step's forward pass
    outputs   the tensors that evaluation reads
    loss      the tensor that training minimises
    frozen    the parameters that training does not change
    """

    name: str
    dtype: str = "float32"
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    updates: dict[str, Node] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    loss: str = ""
    frozen: frozenset[str] = frozenset()
    _known_fingerprint: tuple[list[object], str] | None = field(default=None, init=False, repr=False, compare=False)

    def input(self, name: str, shape: tuple[int, ...], axes: str, dtype: str | None = None) -> Tensor:
        """A tensor that the host fills at each step; `axes` names its dims, as in "b c h w".

        dtype   a NumPy name, by default that of the graph
        Raises ValueError for a name that is taken or holds one of MARKS, for axes that are not one a dim, for extents
        below 1 and for an unknown dtype.
        """
        tensor = self._tensor(Tensor(name, tuple(shape), dtype or self.dtype, tuple(axes.split())))
        self.inputs.append(name)
        return tensor

    def param(self, name: str, shape: tuple[int, ...], axes: tuple[str, ...], init: Init) -> Tensor:
        """A parameter; a name that was given before gives the same parameter, shared.

        Raises ValueError where it is shared with another shape, and for names and axes as `input` does.
        """
        tensor = Tensor(name, tuple(shape), self.dtype, axes, True, init)
        known = self.tensors.get(name)
        if known is None or not known.param:
            return self._tensor(tensor)
        if known.shape != tensor.shape:
            raise ValueError(f"parameter {name!r} is shared with shapes {known.shape} and {shape}")
        return known

    def scalar(self, name: str, dtype: str) -> Tensor:
        """A number () that the host fills in at each step; a name that was given before gives the same one."""
        if name not in self.scalars:
            self._tensor(Tensor(name, (), dtype, ()))
            self.scalars.append(name)
        return self.tensors[name]

    def state(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        init: Init,
        update: Op | None = None,
        *sources: Tensor,
        dtype: str | None = None,
    ) -> Tensor:
        """A carried tensor that no optimizer moves. Nodes that read it see its value after the step before.

        update    in training, the operator that computes the next value from (state, *sources); its result has the
                  state's own axes. Without one the state does not change (evaluation).
        """
        tensor = self._tensor(Tensor(name, tuple(shape), dtype or wide(self.dtype), axes, init=init))
        self.states.append(name)
        if update is not None:
            node = Node(
                f"{name}/update", update, (name, *(t.name for t in sources)), (name,),
                update.bind((tensor, *sources), f"{name}/update"),
            )  # fmt: skip
            assert node.alignment.results[0].axes == axes, f"{name}: {node.alignment.results[0]} should be {axes}"
            self.updates[name] = node
        return tensor

    def apply(self, op: Op, name: str, *inputs: Tensor) -> Tensor:
        """Add a node and return its first result; the others are `name:label`.

        Raises ValueError for an object that is no operator, a name that is taken, inputs of another graph, shapes that
        do not fit, and a user's operator whose bodies do not give what its axis line says.
        """
        if not isinstance(op, Op):
            given = f"the class {op.__name__}" if isinstance(op, type) else f"of type {type(op).__name__}"
            raise ValueError(f"{name}: its operator is {given}: give one of an operator's class, as Relu()")
        if name in self.nodes:
            raise ValueError(f"two nodes are named {name!r}")
        if strange := [t.name for t in inputs if self.tensors.get(t.name) != t]:
            raise ValueError(f"{name}: the tensor {strange[0]!r} is of another graph")
        alignment = op.bind(inputs, name)
        node = Node(
            name, op, tuple(t.name for t in inputs), tuple(name + (f":{r}" if r else "") for r in op.results), alignment
        )
        specs = [Spec(node.whole().reads(n).shape, t.dtype) for n, t in enumerate(inputs)]
        context = {"at": node.whole()} if "at" in op.asks("F") else {}
        try:
            results = record(op.forward, specs, None, **context).results  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(f"{name} ({op.name}): {error}") from error
        shapes = [alignment.shape(operand) for operand in alignment.results]
        if (given := [spec and spec.shape for spec in results]) != shapes:
            gives, should = (" and ".join(map(str, these)) for these in (given, shapes))
            raise ValueError(f"{name} ({op.name}): forward gives {gives}, which by the axis line is {should}")
        for output, operand, spec in zip(node.outputs, alignment.results, results, strict=True):
            assert spec is not None
            self._tensor(Tensor(output, spec.shape, spec.dtype, tuple(dim[0] for dim in operand.dims)))
        if op.is_from_elsewhere:
            promises.check(f"{name} ({op.name})", node.whole(), inputs, [self.tensors[t] for t in node.outputs])
        self.nodes[name] = node
        return self.tensors[name]

    def minimise(self, loss: Tensor) -> None:
        """Make this tensor the loss that training minimises. Raises ValueError where it is no scalar ()."""
        if loss.shape != ():
            raise ValueError(f"the loss {loss.name!r} should be a scalar, its shape is {loss.shape}")
        self.loss = loss.name

    def freeze(self, patterns: Sequence[str]) -> None:
        """Freeze the parameters whose names match these patterns (fnmatch): they get no gradient and no update.

        Raises ValueError where no parameter is left to train.
        """
        self.frozen |= {param.name for param in self.params if any(fnmatchcase(param.name, one) for one in patterns)}
        if patterns and not self.trained:
            raise ValueError(f"{self.name}: all of its parameters are frozen, and none is left to train: freeze fewer")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in layers.available():
            return partial(_add, name, layers.find(name), self)
        if name.startswith("_") or name not in operators.available():
            known = sorted((*filter(_is_layer, operators.available()), *layers.available()))
            near, among = suggestion(name, known), ", ".join(known)
            raise AttributeError(f"a graph has no layer {name!r}{near}; there are {among}")
        if not _is_layer(name):
            raise AttributeError(f"{name} is no layer of a graph: it belongs to updates, which plans add by themselves")
        return partial(_add, name, operators.find(name).layer, self)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if not tensor.name or any(mark in tensor.name for mark in MARKS):
            raise ValueError(
                f"a tensor cannot be named {tensor.name!r}: give it a name without {' and '.join(MARKS)}, which stand "
                "in names of what belongs to a tensor, as in fc.weight/grad"
            )
        if tensor.name in self.tensors:
            raise ValueError(f"two tensors are named {tensor.name!r}")
        if wrong := [n for n in tensor.shape if not isinstance(n, int | np.integer) or n < 1]:
            raise ValueError(f"tensor {tensor.name!r}: {wrong[0]!r} in its shape should be a whole number from 1 on")
        try:
            np.dtype(tensor.dtype)
        except TypeError as error:
            what = f"tensor {tensor.name!r}: {tensor.dtype!r}"
            raise ValueError(f"{what} is no dtype; give one such as float32 or int32") from error
        self.tensors[tensor.name] = tensor
        return tensor

    @property
    def params(self) -> list[Tensor]:
        """All parameters, in the order in which they were made."""
        return [t for t in self.tensors.values() if t.param]

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that training updates."""
        return [param for param in self.params if param.name not in self.frozen]

    @property
    def fixed_states(self) -> dict[str, Init]:
        """The states that are settings of the model, which no file of weights changes: how each is initialised."""
        inits = ((name, self.tensors[name].init) for name in self.states)
        return {name: init for name, init in inits if init is not None and init.fixed}

    @property
    def producers(self) -> dict[str, Node]:
        """By tensor the node that it is a result of."""
        return {name: node for node in self.nodes.values() for name in node.outputs}

    @property
    def batch(self) -> int:
        """The extent of the sample axis."""
        return self.tensors[self.inputs[0]].shape[0]

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """The memory order of the dims of each tensor for which it is not that of its shape."""
        found: dict[str, tuple[int, ...]] = {}
        for n in self.nodes.values():
            tensors = zip((*n.alignment.operands, *n.alignment.results), (*n.inputs, *n.outputs), strict=True)
            found.update({name: own.order for own, name in tensors if own.order})
        return found

    @property
    def fingerprint(self) -> str:
        """A hash of nodes, settings, shapes, orders of dims, wiring and frozen parameters."""
        # kept, as it is compared with that of every plan
        now = [*self.nodes.values(), *self.updates.values(), *self.tensors.values(), self.loss, self.frozen]
        if self._known_fingerprint is None or self._known_fingerprint[0] != now:
            self._known_fingerprint = now, self._fingerprint()
        return self._known_fingerprint[1]

    def _fingerprint(self) -> str:
        nodes = [(n.name, n.op.name, n.op.settings, n.inputs, n.outputs) for n in self.nodes.values()]
        updates = [(n.name, n.op.name, n.op.settings, n.inputs) for n in self.updates.values()]
        tensors = [(t.name, t.shape, t.dtype, t.param) for t in self.tensors.values()]
        hashed = (nodes, updates, tensors, self.loss, *sorted(self.orders.items()), *sorted(self.frozen))
        return hashlib.sha256(repr(hashed).encode()).hexdigest()[:16]


def _add(kind: str, layer: Callable[..., Any], graph: Graph, /, *given: Any, **settings: Any) -> Any:
    """Add a layer. Raises ValueError as the layer does, and for an array with fewer dims than it reads."""
    try:
        return layer(graph, *given, **settings)
    except IndexError as error:
        tensors = [one for one in (*given, *settings.values()) if isinstance(one, Tensor)]
        shapes = " and ".join(f"{tensor.name!r} of shape {tensor.shape}" for tensor in tensors)
        raise ValueError(f"{kind}: it takes an array of more dims, and is given {shapes}") from error


def _is_layer(name: str) -> bool:
    """Whether an operator can be added to a graph as a layer."""
    return hasattr(operators.find(name), "layer")
