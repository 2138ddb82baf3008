"""Models by name: `gpt:layers=4,width=128` is the file gpt.py of this folder, or a Python file of the user's own.

A model is a module with `build(batch=None, dtype="float32", **settings) -> Graph`, whose keyword parameters with type
hints are its settings, and `RECIPE`, how it is trained unless the user says otherwise. A parameter `training` is no
setting: where it is False the graph is for evaluation, without dropout and with running statistics. Every model takes
the setting `rewrite`, what its graphs go through, a rewrite of planner/rewrites, a file of the user's or `none`, and
`frozen`, patterns of parameters that are not trained, joined by +. It does not know how a model is planned or run.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any

from msgspec import Meta

from castile.launch import importers
from castile.launch.importers import Imported, Stored
from castile.launch.typed import rewriters, settings, theirs
from castile.planner import rewrite as rewrites
from castile.planner.bodies.vocabulary import itemsize
from castile.planner.graph import Graph
from castile.runtime.strict import convert, hint, suggestion

# Says of a model's setting `rewrite` that its graph stays as it is.
NO_REWRITE = "none"

# Of which models, by their texts, rewrites of the user's own were held against what they rewrite, for training or not.
_held = set[tuple[object, ...]]()

# So many bytes of one tensor are a slip of the finger.
MOST_BYTES = 2**50

# What a model may compute with; of those of 16 bits it keeps parameters in float32.
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained by default, in the words of the command line.

    data        a data set, as --data takes it
    batch, lr   samples a step, the learning rate's peak
    momentum    of sgd, where `optimizer` names none
    optimizer   as --optimizer takes it, such as adamw:decay=0.1
    schedule    as --schedule takes it, such as cosine:warmup=100
    clip        the largest norm of the gradient, None for any
    undecayed   patterns of parameters without weight decay, separated by commas
    """

    data: str
    batch: Annotated[int, Meta(ge=1)]
    lr: Annotated[float, Meta(gt=0)]
    momentum: float = 0.9
    epochs: Annotated[int, Meta(ge=1)] = 1
    optimizer: str = ""
    schedule: str = "constant"
    clip: float | None = None
    undecayed: str = ""

    @property
    def updated_by(self) -> str:
        """The optimizer, as --optimizer takes it."""
        return self.optimizer or f"sgd:momentum={self.momentum}"


@dataclass(frozen=True)
class Model:
    """A model that the user named, with settings; `graph` builds it, and rewrites it where a rewrite is named.

    text      the name with its settings, as the user wrote it
    rewrite   the rewrites, "" for none; None where the user leaves that open, which is none until one is chosen
    frozen    patterns of parameters that are not trained
    telling   what a file tells that is worth knowing before it is trained, of its graph and settings
    storing   how a file has parameters that are otherwise here, of the same
    """

    name: str
    build: Callable[..., Graph]
    recipe: Recipe
    settings: Mapping[str, Any] = field(default_factory=dict)
    rewrite: str | None = None
    text: str = ""
    frozen: tuple[str, ...] = ()
    telling: Callable[[Graph, Mapping[str, Any]], str] | None = None
    storing: Callable[[Graph, Mapping[str, Any]], Mapping[str, Stored]] | None = None

    @property
    def is_theirs(self) -> bool:
        """Whether it is a Python file of the user's own."""
        return self.name.endswith(".py")

    @property
    def file(self) -> str:
        """The path of the file that says what it is."""
        return self.name if is_file(self.name) else inspect.getfile(self.build)

    def rewritten(self, names: str) -> Model:
        """The same with rewrites, where the user left them open."""
        name, given = settings.split(self.text)
        return replace(self, rewrite=names, text=settings.joined(name, {**given, "rewrite": names}))

    @property
    def as_built(self) -> Model:
        """The same without rewrites: what it is, whatever its steps compute with."""
        name, given = settings.split(self.text)
        given.pop("rewrite", None)
        return replace(self, rewrite=None, text=settings.joined(name, given))

    def frozen_as(self, text: str) -> Model:
        """The same with those of its parameters frozen that the model of this text has frozen.

        Raises ValueError where a file that it is cannot be read.
        """
        name, given = settings.split(self.text)
        frozen = {key: value for key, value in settings.split(text)[1].items() if key == "frozen"}
        return parse(settings.joined(name, {key: value for key, value in given.items() if key != "frozen"} | frozen))

    def as_planned(self, text: str) -> Model:
        """The same with the rewrites of a plan's model, which this text names, where the user left them open.

        As it is where that is another model, or has other settings.
        """
        name, given = settings.split(text)
        names = given.pop("rewrite", NO_REWRITE)
        is_same = self.rewrite is None and (name, given) == settings.split(self.text)
        return self.rewritten(names) if is_same and names != NO_REWRITE else self

    def takes(self, setting: str) -> bool:
        """Whether the model's function has a parameter of that name."""
        return setting in inspect.signature(self.build).parameters

    def remark(self, graph: Graph) -> str:
        """What is worth knowing before its graph is trained; "" for nothing."""
        return self.telling(graph, self.settings) if self.telling is not None else ""

    def stored(self, graph: Graph) -> Mapping[str, Stored]:
        """How parameters of its graph are in the file that it is, and in files of weights for it, if otherwise."""
        return self.storing(graph, self.settings) if self.storing is not None else {}

    def graph(self, batch: int | None = None, dtype: str = "float32", training: bool = True) -> Graph:
        """The operator graph for that many samples a step (by default the recipe's), for training or evaluation.

        Raises ValueError in one sentence for what the user has to mend in settings, or in files of their own.
        """
        graph = self._built(batch, dtype, training)
        if not self.rewrite:
            return graph
        self._hold(graph, dtype, training)
        return rewrites.apply(self.rewrite, graph)

    def _hold(self, graph: Graph, dtype: str, training: bool) -> None:
        """Raises ValueError where rewrites of the user's own do not compute what the graph computes, of two samples
        where the model takes as few; looked at once.
        """
        own = rewriters.files(self.rewrite or "")
        key = (self.text, training, *map(rewrites.find, own))
        if not own or key in _held:
            return
        _held.add(key)
        # kernels' definitions take longer to import than all else here
        from castile.launch.arrays import equal

        with suppress(ValueError):
            graph = self._built(2, dtype, training)
        if difference := equal.difference(graph, rewrites.apply(self.rewrite or "", graph)):
            raise ValueError(f"rewrite {rewrites.AND.join(own)} changes what the network computes: {difference}")

    def _built(self, batch: int | None, dtype: str, training: bool) -> Graph:
        """The graph before it is rewritten."""
        if batch is not None and batch < 1:
            raise ValueError(f"model {self.name}: a batch holds at least 1 sample, got {batch}")
        small = [name for name, value in self.settings.items() if type(value) is int and value < 1]
        if small:
            raise ValueError(f"model {self.name}: {small[0]} should be at least 1, got {self.settings[small[0]]}")
        mode = {"training": training} if self.takes("training") else {}
        doing = f"model file {self.name}: build()"
        with theirs.running(self.name, doing) if self.is_theirs else nullcontext():
            graph = self.build(batch=batch, dtype=dtype, **mode, **self.settings)
        if not isinstance(graph, Graph):
            raise ValueError(f"model {self.name}: build() should give a Graph, not {type(graph).__name__}")
        if not graph.nodes:
            raise ValueError(f"model {self.name}: build() gave a graph of no nodes; its layers are methods of Graph")
        if wrong := _wrong(graph, batch):
            raise ValueError(f"model {self.name}: build() {wrong}")
        self._freeze(graph, training)
        return graph

    def _freeze(self, graph: Graph, training: bool) -> None:
        """Raises ValueError for a pattern that no parameter has, and where all are frozen."""
        names = [param.name for param in graph.params]
        for pattern in self.frozen if training else ():
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"model {self.name}: frozen={pattern}: {nothing_like(pattern, names)}")
        graph.freeze(self.frozen)


def nothing_like(pattern: str, names: Sequence[str]) -> str:
    """That no parameter has such a name, in words, and which is near."""
    return f"no parameter has a name like that{hint(pattern, list(names))}"


def _wrong(graph: Graph, batch: int | None) -> str:
    """What a graph lacks that is to be trained on so many samples a step, in words; "" where it lacks nothing."""
    given = {name for node in graph.nodes.values() for name in node.outputs}
    if strange := [name for name in graph.outputs if name not in given]:
        return f"names {strange[0]!r} as an output, which no layer gives"
    if graph.loss and graph.loss not in given:
        return f"names {graph.loss!r} as its loss, which no layer gives"
    if not graph.inputs:
        return "gave a graph without inputs: samples come by g.input(name, (batch, ...), axes)"
    shapes = {name: graph.tensors[name].shape for name in (*graph.inputs, *graph.outputs[:1])}
    rows = (batch,) if batch else shapes[graph.inputs[0]][:1]
    if strange := [name for name, shape in shapes.items() if not shape or shape[:1] != rows]:
        number = f", {rows[0]} samples" if rows else ""
        return f"gave {strange[0]!r} the shape {shapes[strange[0]]}, whose first dim should be the batch{number}"
    if huge := next((t for t in graph.tensors.values() if prod(t.shape) * itemsize(t.dtype) > MOST_BYTES), None):
        return f"gave {huge.name!r} the shape {huge.shape}, more than any machine has memory for"
    return ""


def available() -> tuple[str, ...]:
    """The names of all models, found by walking the folder."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def is_file(name: str) -> bool:
    """Whether what stands for a model is a file's name: a Python file, or one that an importer reads."""
    return name.endswith(".py") or importers.of(name) is not None


def parse(text: str) -> Model:
    """The model of NAME:key=value,..., FILE.py:key=value,... or another file that an importer reads, as FILE.onnx.

    Every model takes rewrite=NAME, NAME+NAME or none, and frozen=PATTERN or PATTERN+PATTERN, unless its function itself
    does.

    Raises ValueError in one sentence for an unknown name or setting, and for a file that is no model.
    """
    name, given = settings.split(text)
    rewrite = given.pop("rewrite", None)
    if rewrite == NO_REWRITE:
        rewrite = ""
    elif rewrite is not None:
        rewriters.read(rewrite)
        rewrites.check(rewrite)
    module = module_of(name)
    own = inspect.signature(module.build).parameters
    frozen = tuple(filter(None, given.pop("frozen", "").split("+"))) if "frozen" not in own else ()
    values = settings.typed(module.build, given, f"model {name}", reserved=("batch", "dtype", "training"))
    recipe = _recipe(module, name)
    telling, storing = (module.remark, module.stored) if isinstance(module, Imported) else (None, None)
    return Model(name, module.build, recipe, values, rewrite, text, frozen, telling, storing)


def module_of(name: str) -> ModuleType | Imported:
    """The module of a model by its name or its file. Raises ValueError as `parse` does."""
    if name.endswith(".py"):
        return _from_file(name)
    importer = importers.of(name)
    return importer.load(name) if importer is not None else _by_name(name)


def _by_name(name: str) -> ModuleType:
    if name.endswith(".json"):
        raise ValueError(
            f"no model {name!r}: name the model first; a plan's file goes with --plan, or with --from where a search "
            "is to go on from it"
        )
    if name not in available():
        among = ", ".join(available())
        # who has a file of that name means it, though only its ending says so
        near = [str(path) for path in sorted(Path(name).parent.glob("*")) if path.stem == Path(name).name]
        file = next(filter(is_file, near), "")
        hint = f" (did you mean {file!r}, a file that is here?)" if file else suggestion(name, list(available()))
        raise ValueError(
            f"no model {name!r}{hint}; there are {among}, or name a Python file with build(), or an ONNX file"
        )
    return importlib.import_module(f"castile.launch.models.{name}")


def _recipe(module: ModuleType | Imported, name: str) -> Recipe:
    """How the module says that its model is trained, looked at field by field."""
    given = getattr(module, "RECIPE", Recipe("digits", 32, 0.1))
    if not isinstance(given, Recipe):
        raise ValueError(
            f"model {name}: RECIPE is a {type(given).__name__}: write Recipe(data=..., batch=..., lr=...), which is in "
            "castile.launch.models"
        )
    # numbers of NumPy are numbers
    fields = {key: value.item() if hasattr(value, "item") else value for key, value in asdict(given).items()}
    return convert(fields, Recipe, f"model {name}: RECIPE")


def _from_file(path: str) -> ModuleType:
    module = theirs.module(path, "model file", "build(batch, dtype, ...) that returns a Graph")
    taken = inspect.signature(module.build).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    if missing := [name for name in ("batch", "dtype") if name not in taken and not takes_any]:
        raise ValueError(
            f"model file {path}: build() does not take {' and '.join(missing)}: write "
            'def build(batch=None, dtype="float32"), with the model\'s settings after these'
        )
    return module
