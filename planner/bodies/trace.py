"""The recorder: a body run on shapes becomes the list of kernel calls that its task is.

It does not know what a kernel computes: shapes and workspaces come from the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from castile.planner.bodies import vocabulary
from castile.planner.bodies.fusing import collapsed
from castile.planner.bodies.symbols import Step, Symbol
from castile.planner.bodies.vocabulary import Spec
from castile.runtime.task import Arg, Body, Call, Temp


@dataclass
class Recorder:
    """The kernel vocabulary `k` that writes calls down instead of computing."""

    steps: list[Step] = field(default_factory=list)

    def __getattr__(self, kernel: str) -> Callable:
        if kernel.startswith("_"):
            raise AttributeError(kernel)

        def call(*args: object, **params: object) -> Symbol | tuple[Symbol, ...]:
            specs = tuple(a.spec if isinstance(a, Symbol) else a for a in args)
            outs = tuple(Symbol(s.shape, s.dtype) for s in vocabulary.results(kernel, specs, params))
            self.steps.append(Step(kernel, args, outs, params))
            return outs[0] if len(outs) == 1 else outs

        return call


class Recording(msgspec.Struct, frozen=True, eq=False):
    """A recorded body: which inputs it reads, the specs of its results; `body` makes the calls for given sums.

    reads      numbers of the inputs that some call uses
    results    a spec for each result, None where the body makes no contribution
    """

    steps: tuple[Step, ...]
    inputs: tuple[Symbol, ...]
    outputs: tuple[Symbol | None, ...]
    reads: tuple[int, ...]

    @property
    def results(self) -> tuple[Spec | None, ...]:
        return tuple(o.spec if o is not None else None for o in self.outputs)

    @property
    def identity(self) -> tuple[object, ...]:
        """What it computes of inputs of known shapes: the same for two that record the same."""
        number = {id(symbol): n for n, symbol in enumerate(self.inputs)}
        calls = []
        for step in self.steps:
            args = tuple([number[id(a)] if isinstance(a, Symbol) else repr(a) for a in step.args])
            for out in step.outs:
                number[id(out)] = len(number)
            calls.append((step.kernel, args, tuple([o.spec for o in step.outs]), repr(sorted(step.params.items()))))
        return tuple(calls), tuple([o if o is None else number[id(o)] for o in self.outputs])

    def body(self, accumulate: Sequence[bool], dtypes: Sequence[str], turns: Sequence[tuple[int, ...]]) -> Body:
        """The calls; result j is added to its view where accumulate[j], and is of dtypes[j] there.

        Views: inputs read, then results made. turns: of each view where in it each dim is, () where as they come.
        """
        made = list(zip([o for o in self.outputs if o is not None], accumulate, dtypes, strict=True))
        args = [Arg("view", n, turn) for n, turn in enumerate(turns)]
        views = {id(self.inputs[i]): arg for i, arg in zip(self.reads, args, strict=False)}
        steps, places = _placed_results(list(self.steps), made, views, args[len(self.reads) :])
        return _allocate(steps, {**views, **places})


def record(
    body: Callable, inputs: Sequence[Spec | tuple[Spec, ...]], wanted: Sequence[bool] | None = None, **context: object
) -> Recording:
    """Run body(k, *symbols, **context), keep what the wanted results need. Context values that are Specs are inputs.

    Inputs are numbered as they come, those of tuples one by one. Results that are None (no gradient, no contribution)
    or not wanted are dropped.
    """
    k = Recorder()
    symbols = [_symbols(s) for s in inputs]
    extra = {name: _symbols(value) for name, value in context.items()}
    result = body(k, *symbols, **extra)
    outputs = list(result) if isinstance(result, tuple) else [result]
    if wanted is not None:
        assert len(wanted) == len(outputs), f"{body}: {len(outputs)} results, {len(wanted)} expected"
        outputs = [o if w else None for o, w in zip(outputs, wanted, strict=True)]
    everything = [s for value in (*symbols, *extra.values()) for s in _flat(value)]
    steps = collapsed(_needed(k.steps, outputs), outputs)
    used = {id(a) for s in steps for a in s.args} | {id(o) for o in outputs}
    reads = tuple(i for i, s in enumerate(everything) if id(s) in used)
    return Recording(tuple(steps), tuple(everything), tuple(outputs), reads)


def _symbols(value: object) -> object:
    if isinstance(value, Spec):
        return Symbol(value.shape, value.dtype)
    if isinstance(value, tuple) and value and all(isinstance(v, Spec) for v in value):
        return tuple(Symbol(v.shape, v.dtype) for v in value)
    return value


def _flat(value: object) -> list[Symbol]:
    values = value if isinstance(value, tuple) else (value,)
    return [v for v in values if isinstance(v, Symbol)]


def _needed(steps: list[Step], outputs: Sequence[Symbol | None]) -> list[Step]:
    wanted = {id(o) for o in outputs}
    kept = []
    for step in reversed(steps):
        if not wanted.isdisjoint(map(id, step.outs)):
            kept.append(step)
            wanted.update(map(id, step.args))
    return kept[::-1]


def _placed_results(
    steps: list[Step], made: Sequence[tuple[Symbol, bool, str]], views: dict[int, Arg], to: Sequence[Arg]
) -> tuple[list[Step], dict[int, Arg]]:
    """Let each result, told with whether it is added and its dtype, be written straight into its view where its last
    call can; else copy it there.

    Views of one shape may be one array, to which all but the first of them are added: what is added comes after those
    before it are there, and after all that reads what is written there.
    """
    last = {id(a): n for n, s in enumerate(steps) for a in s.args}
    maker = {id(o): n for n, s in enumerate(steps) for o in s.outs}
    places: dict[int, Arg] = {}
    copies: tuple[list[Step], list[Step]] = ([], [])
    latest: dict[tuple[int, ...], int] = {}
    for j, (symbol, adds, dtype) in enumerate(made):
        at, until = maker.get(id(symbol), -1), last.get(id(symbol), -1)
        direct = at >= 0 and id(symbol) not in places and id(symbol) not in views
        same = [also for other, also, _ in made if other is symbol]
        # else others see what is there: a call that reads it, or another result that is the same
        alone = until < 0 and len(same) == 1
        if direct and adds:
            direct = len(steps[at].outs) == 1 and alone and at > latest.get(symbol.shape, -1)
        # whoever adds the same elsewhere would find here what others have added
        direct = direct and (adds or not any(same))
        target = symbol
        if symbol.dtype != dtype:
            direct = direct and alone and vocabulary.casts(steps[at].kernel)
            target = Symbol(symbol.shape, dtype)
        if direct:
            step = steps[at]
            outs = tuple(target if o is symbol else o for o in step.outs)
            steps[at] = Step(step.kernel, step.args, outs, step.params, adds)
            after = max(at, until, len(steps) * (len(same) > 1))
        else:
            target = Symbol(symbol.shape, dtype)
            copies[adds].append(Step("copy", (symbol,), (target,), {}, adds))
            after = len(steps)
        latest[symbol.shape] = max(latest.get(symbol.shape, -1), after)
        places[id(target)] = to[j]
    return [*steps, *copies[False], *copies[True]], places


def _turn(out: Symbol, step: Step, places: Mapping[int, Arg]) -> tuple[int, ...]:
    """Where in a temporary each dim of it is: as in the first operand of its shape, as both are walked together."""
    alike = (places[id(x)].turn for x in step.args if isinstance(x, Symbol) and x.shape == out.shape)
    return next(alike, ())


def _turned(shape: tuple[int, ...], turn: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of memory in which each dim is where `turn` says."""
    return tuple(size for _, size in sorted(zip(turn, shape, strict=True))) if turn else shape


def _allocate(steps: list[Step], places: dict[int, Arg]) -> Body:
    """Give temporaries and scratch their offsets: first fit over their lives from call to call."""
    last = {id(a): n for n, s in enumerate(steps) for a in s.args}
    live: list[tuple[int, int, int]] = []  # offset, end, last step that needs it
    temps: list[Temp] = []
    calls, peak = [], 0
    for n, step in enumerate(steps):
        for out in step.outs:
            if id(out) not in places:
                offset = _first_fit(live, size := vocabulary.round_up(out.spec.nbytes))
                live.append((offset, offset + size, last.get(id(out), n)))
                turn = _turn(out, step, places)
                places[id(out)] = Arg("temp", len(temps), turn)
                temps.append(Temp(offset, _turned(out.shape, turn), out.dtype))
        specs = tuple(a.spec if isinstance(a, Symbol) else a for a in step.args)
        made = tuple(o.spec for o in step.outs)
        size = vocabulary.workspace(step.kernel, specs, made, step.params, step.accumulate)
        offset = _first_fit(live, size)
        peak = max([peak, offset + size] + [end for _, end, _ in live])
        args = tuple(places[id(a)] if isinstance(a, Symbol) else a for a in step.args)
        outs = tuple(places[id(o)] for o in step.outs)
        params = tuple(sorted(step.params.items()))
        calls.append(Call(step.kernel, args, outs, params, step.accumulate, offset, size))
        live = [piece for piece in live if piece[2] > n]
    return Body(tuple(calls), tuple(temps), peak)


def _first_fit(live: list[tuple[int, int, int]], size: int) -> int:
    offset = 0
    for start, end, _ in sorted(live):
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset
