"""ONNX: networks that PyTorch and others export, with their weights.

    castile plan net.onnx:loss=mse --machine dgx-h100:nodes=4

It does not know operators (`operators`), nor how nodes become castile's (`network`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from castile.launch.importers import Imported, Stored
from castile.launch.importers.onnx import notes, sampled, trained
from castile.launch.importers.onnx.file import kind_of, numbers, package, read
from castile.launch.importers.onnx.network import Network
from castile.launch.importers.onnx.values import Known, Whole, is_real, steps
from castile.launch.models import Recipe, nothing_like
from castile.planner.graph import Graph
from castile.planner.op import Tensor

BATCH = 32
# Of so many operators that are not supported the names are told.
MOST_TOLD = 12
AXES = {1: "b", 2: "b i", 3: "b s i", 4: "b c h w", 5: "b c d h w"}
# Parameters that the network of any file has, and their defaults.
OWN = {
    "batch": None, "dtype": "float32", "training": True, "loss": "", "class_weights": "", "inputs": "", "frozen": "",
}  # fmt: skip


def load(path: str) -> Imported:
    """The network of an ONNX file. Raises ValueError in one sentence where castile cannot take it."""
    file = File(path)

    def build(batch: int | None = None, dtype: str = "float32", training: bool = True, **settings: Any) -> Graph:
        return file.network(batch, dtype, training, settings).graph

    # its settings are those of the file: lengths that it leaves open
    build.__signature__ = _signature(file)  # type: ignore[attr-defined]
    build.__annotations__ = {p.name: p.annotation for p in _signature(file).parameters.values()}
    inputs, losses = tuple(file.inputs), tuple(trained.LOSSES)
    return Imported(build, Recipe("noise", file.usual, 0.01), file.values, file.stored, file.remark, inputs, losses)


def _signature(file: File) -> inspect.Signature:
    kinds = {"batch": int, "training": bool}
    found: dict[str, tuple[object, type]] = {name: (default, kinds.get(name, str)) for name, default in OWN.items()}
    found |= {name: (0, int) for name in file.open}
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (default, kind) in found.items()
        ]
    )


def _setting(called: str, place: str) -> str:
    """The setting for a length that is called so, or is at a place: no name of Python's, nor of another setting's."""
    names = [re.sub(r"\W+", "_", text).strip("_") for text in (called, place, f"dim_{place}")]
    return next(one for one in names if one.isidentifier() and not iskeyword(one) and one not in (*OWN, "rewrite"))


def _patterns(settings: Mapping[str, Any]) -> list[str]:
    """The names, with wildcards, of the weights that a user freezes."""
    return [pattern for pattern in settings.get("frozen", "").split("+") if pattern]


@dataclass(frozen=True)
class File:
    """A file's network, read once."""

    path: str

    @property
    def who(self) -> str:
        return f"model file {self.path}"

    @cached_property
    def proto(self) -> Any:
        found = read(self.path)
        return package().inliner.inline_local_functions(found) if found.functions else found

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What the network is given; old files name weights among it."""
        weights = {tensor.name for tensor in self.proto.graph.initializer}
        return {i.name: i.type for i in self.proto.graph.input if i.name not in weights}

    @cached_property
    def batch(self) -> int:
        """How many samples the file is written for, 0 where it leaves that open."""
        first = next(iter(self.inputs.values()), None)
        dims = first.tensor_type.shape.dim if first is not None else []
        return dims[0].dim_value if dims else 0

    @property
    def usual(self) -> int:
        """Samples a step where the user names no number: as the file says, but for 1, which exporters put for any."""
        return self.batch if self.batch > 1 else BATCH

    @cached_property
    def open(self) -> list[str]:
        """Settings for the lengths that the file leaves open, but for the number of samples."""
        return list(dict.fromkeys(name for dims in self._lengths.values() for name in dims if isinstance(name, str)))

    @cached_property
    def _lengths(self) -> dict[str, list[int | str]]:
        """For each input its lengths, or names of settings, behind the first dim."""
        found = {}
        for name, kind in self.inputs.items():
            dims: list[int | str] = []
            for n, dim in enumerate(kind.tensor_type.shape.dim):
                dims.append(dim.dim_value if dim.dim_value else _setting(dim.dim_param, f"{name}_{n}"))
            found[name] = dims[1:]
        return found

    @cached_property
    def _notes(self) -> notes.Notes:
        return notes.read(self.proto.graph)

    def _weights(self) -> dict[str, Known]:
        """The numbers that the file holds; a matrix that is a turned parameter is that parameter."""
        tensors = self.proto.graph.initializer
        found = {t.name: numbers(t, self.path, self._notes.is_learned(t), self._notes.is_sure(t)) for t in tensors}
        whose = {t.name: self._notes.turned_from(t) for t in tensors}
        return {n: _named(one, whose[n], found, n in self._tied) if whose[n] else one for n, one in found.items()}

    @cached_property
    def _tied(self) -> set[str]:
        """Numbers that are another one's, turned: PyTorch writes a head's apart from the table that it shares."""
        tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        found = set()
        for name, tensor in tensors.items():
            other = tensors.get(self._notes.turned_from(tensor))
            if other is not None and list(tensor.dims) == list(other.dims)[::-1]:
                arrays = [numbers(one, self.path).array for one in (tensor, other)]
                found |= {name} if np.array_equal(arrays[0], arrays[1].T) else set()
        return found

    def network(self, batch: int | None, dtype: str, training: bool, settings: Mapping[str, Any]) -> Network:
        """The network as castile's. Raises ValueError in one sentence."""
        net = self._read(batch or self.usual, dtype, training, settings)
        loss, outputs = settings.get("loss", ""), [one.name for one in self.proto.graph.output]
        if loss:
            trained.check(loss, self.who)
        self._refuse(net, settings)
        self._finish(net, loss, settings.get("class_weights", ""), outputs)
        self._freeze(net, _patterns(settings))
        return net

    def _read(self, batch: int, dtype: str, training: bool, settings: Mapping[str, Any]) -> Network:
        """The nodes of the file as castile's, so far as it has such."""
        frozen = _patterns(settings)
        opsets = {one.domain.replace("ai.onnx", ""): one.version for one in self.proto.opset_import}
        net = Network(
            self.path, Graph(Path(self.path).stem, dtype), batch, self.batch, training, opsets,
            lambda name: any(fnmatchcase(name, pattern) for pattern in frozen), self._notes.are_there,
        )  # fmt: skip
        net.values.update(self._weights())
        for name, called in zip(self.inputs, self._called(settings.get("inputs", "")), strict=True):
            self._input(net, name, called, settings)
        net.add(self.proto.graph.node, [one.name for one in self.proto.graph.output])
        return net

    def _freeze(self, net: Network, patterns: Sequence[str]) -> None:
        """Weights of such names that became parameters are not trained; others have become constants.

        Raises ValueError for a pattern that no weight of the file has, and where all parameters are frozen.
        """
        names = [tensor.name for tensor in self.proto.graph.initializer]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in (*names, *net.sources)):
                raise ValueError(f"{self.who}: frozen={pattern}: {nothing_like(pattern, names)}")
        net.graph.freeze([param.name for param in net.graph.params if net.frozen(net.sources[param.name].name)])

    def _called(self, names: str) -> list[str]:
        """What the inputs are called in castile: as the user says, with + between, or as in the file."""
        given = names.split("+") if names else list(self.inputs)
        if len(given) != len(self.inputs):
            raise ValueError(
                f"{self.who}: inputs={names} should name its {len(self.inputs)} inputs, {', '.join(self.inputs)}, with "
                "+ between"
            )
        if len(set(given)) < len(given):
            raise ValueError(f"{self.who}: inputs={names} calls two of its inputs the same: name each otherwise")
        return given

    def _input(self, net: Network, name: str, called: str, settings: Mapping[str, Any]) -> None:
        kind = self.inputs[name]
        if not kind.HasField("tensor_type") or not kind.tensor_type.shape.dim:
            raise ValueError(f"{self.who}: its input {name!r} is no array whose first dim is the batch")
        opened = [one for one in self._lengths[name] if isinstance(one, str) and not settings.get(one)]
        if opened:
            raise ValueError(
                f"{self.who}: it leaves the length {opened[0]!r} of its input {name!r} open: say it, as in "
                f"{self.path}:{opened[0]}=128"
            )
        rest = [int(settings[one]) if isinstance(one, str) else one for one in self._lengths[name]]
        found = kind_of(kind.tensor_type.elem_type, f"{self.who}: its input {name!r}")
        if not is_real(found) and found.kind not in "biu":
            words = package().TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
            raise ValueError(f"{self.who}: its input {name!r} is of kind {words}, which castile has not")
        axes = AXES.get(len(rest) + 1) or " ".join(["b", *(f"d{n}" for n in range(len(rest)))])
        # those of fewer bits too are of the graph's dtype
        net.input(name, called, (net.batch, *rest), axes, np.dtype(np.float32) if is_real(found) else found)

    def _refuse(self, net: Network, settings: Mapping[str, Any]) -> None:
        """Raises ValueError, naming all that castile has no operator for, or the batch for which it has all."""
        if not net.lacking:
            return
        lacking = [f"{op}{f' {how}' if how else ''} (as in {node})" for (op, how), node in net.lacking.items()]
        more = f" and {len(lacking) - MOST_TOLD} more" if len(lacking) > MOST_TOLD else ""
        own = net.file_batch
        if own not in (0, net.batch) and not self._read(own, net.graph.dtype, net.training, settings).lacking:
            raise ValueError(
                f"{self.who}: it is written for {own} samples at a time, and computes no other number "
                f"({lacking[0]}): give --batch {own}, or export it with the first dim of its inputs open"
            )
        raise ValueError(
            f"{self.who}: castile has no operator for {'; '.join(lacking[:MOST_TOLD])}{more}: "
            "write the network without, or add them as docs/own.md says"
        )

    def _finish(self, net: Network, loss: str, weights: str, outputs: list[str]) -> None:
        """The loss and what is predicted; the last softmax or sigmoid is no part of what is trained."""
        graph, first = net.graph, net.values[outputs[0]]
        if isinstance(first, Known):
            raise ValueError(f"{self.who}: its output {outputs[0]!r} does not depend on its inputs")
        if not isinstance(first, Tensor) or not first.floating:
            raise ValueError(f"{self.who}: its output {outputs[0]!r} is of whole numbers, which are not trained")
        others = [net.operand(one) for one in map(net.values.get, outputs[1:]) if isinstance(one, Tensor | Whole)]
        if first.shape == ():
            given = f"loss={loss}" if loss else f"class_weights={weights}" if weights else ""
            judged, whole = self._own_loss(graph, first, given, others)
        else:
            judged, whole = [self._judged(net, first, loss, weights, outputs[0])], [first, *others]
        named = [one.name for one in judged] if net.training else self._depending(graph, whole)
        trained.pruned(graph, named)
        sampled.named(graph)

    def _own_loss(
        self, graph: Graph, first: Tensor, given: str, others: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Trains on the file's first output; what there is to judge, and what to predict."""
        if given:
            raise ValueError(f"{self.who}: its output {first.name!r} is a loss of its own: leave out {given}")
        graph.minimise(first)
        logits = trained.judged_by(graph, first)
        whole = [*([logits] if logits else []), *others]
        return whole[:1], whole

    def _judged(self, net: Network, first: Tensor, loss: str, weights: str, output: str) -> Tensor:
        """Trains on a loss of the first output; what of it is judged."""
        if first.shape[:1] != (net.batch,) and net.batch > 0:
            raise ValueError(
                f"{self.who}: its output {output!r} has shape {first.shape}, whose first dim should be the batch, "
                f"{net.batch} samples"
            )
        loss = loss or trained.default(first.shape)
        judged = self._before_end(net, output, loss) or first
        net.graph.minimise(trained.loss_of(net.graph, loss, judged, weights, self.who))
        return judged

    def _before_end(self, net: Network, output: str, loss: str) -> Tensor | None:
        """What goes into the last operator, where that only turns logits into probabilities."""
        last = next((node for node in self.proto.graph.node if output in node.output), None)
        if last is None or last.op_type not in trained.ENDS[loss]:
            return None
        found = net.values[last.input[0]]
        return found if isinstance(found, Tensor) else None

    def _depending(self, graph: Graph, whole: list[Tensor]) -> list[str]:
        """The outputs that need no other parameters than the loss does."""
        of: dict[str, frozenset[str]] = {t.name: frozenset([t.name]) for t in graph.params}
        for node in graph.nodes.values():
            needs = frozenset[str]().union(*(of.get(name, frozenset()) for name in node.inputs))
            of.update(dict.fromkeys(node.outputs, needs))
        fitting = [t.name for t in whole if of[t.name] <= of[graph.loss] and t.shape[:1] == (graph.batch,)]
        return list(dict.fromkeys(fitting))

    def values(self, graph: Graph, settings: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """The file's numbers for parameters and states of a graph. Raises ValueError where they are of other shapes."""
        sources = self.network(graph.batch, graph.dtype, False, settings).sources
        wanted = [name for name in (*(t.name for t in graph.params), *graph.states) if name in sources]
        for name in wanted:
            if sources[name].shape != graph.tensors[name].shape:
                there = f"its {name!r} has shape {sources[name].shape}"
                raise ValueError(f"{self.who}: {there}, it should have {graph.tensors[name].shape}")
        return Numbers({name: sources[name] for name in wanted})

    def stored(self, graph: Graph, settings: Mapping[str, Any]) -> Mapping[str, Stored]:
        """How the file has the parameters and states of a graph, or PyTorch as the file notes it, if otherwise."""
        sources, weights = self.network(graph.batch, graph.dtype, False, settings).sources, self._weights()
        found = {}
        for name, one in sources.items():
            own = weights.get(one.name)
            if one.form and own is not None and own.unmoved.shape == one.unmoved.shape:
                ways = steps(one.form, ()), steps((), one.form)
                there, here = (tuple((kind, how) for kind, how, _ in way) for way in ways)
                found[name] = Stored(one.unmoved.shape, there, here)
        return found

    def remark(self, graph: Graph, settings: Mapping[str, Any]) -> str:
        """What is not trained as in PyTorch, as the file does not say enough, in a line each."""
        net, weights = self.network(graph.batch, graph.dtype, True, settings), self._weights().values()
        trained = {net.sources[t.name].name for t in net.graph.params}
        single = [one.name for one in weights if one.learned and one.is_floating and not one.is_weight]
        kept = [name for name in single if name not in trained and not net.frozen(name)]
        folded = [
            one.name for one in self.proto.graph.initializer if self._notes.is_folded(one) and one.name in trained
        ]
        lines = {
            "are not trained: the file does not say whether these single numbers are": kept,
            "are weights of their own: PyTorch computed them of others, which torch.onnx.export(..., optimize=False) "
            "leaves to the network": folded,
        }
        return "\n".join(f"{_listed(names)} of {self.path} {what}" for what, names in lines.items() if names)


def _listed(names: Sequence[str]) -> str:
    """Names, but no more than most people read."""
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return ", ".join(names[:MOST_TOLD]) + more


def _named(one: Known, name: str, there: Mapping[str, Known], is_tied: bool) -> Known:
    """A matrix that is the parameter of a name, turned."""
    if name in there:
        return there[name].turned((1, 0)) if is_tied else one
    return replace(one, name=name, shape=one.shape[::-1], make=lambda: one.array.T).turned((1, 0))


@dataclass(frozen=True)
class Numbers(Mapping[str, np.ndarray]):
    """The numbers of a file by castile's names, each read when it is asked for."""

    sources: Mapping[str, Known]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.sources[name].array

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)
