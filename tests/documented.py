"""Tables of README.md and docs/options.md as the code has them; `python -m tests.documented` writes them there.

A table stands between two marks, `<!-- NAME: ... -->` and `<!-- end of NAME -->`, and is the function NAME of this
file. It does not know what else the pages say.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from math import prod
from pathlib import Path
from typing import Any

from castile.launch import data, models
from castile.launch.typed import optimizers, rates
from castile.planner import layers, searches
from castile.planner import op as ops
from castile.runtime import machine as machines
from tests.command_lines import COMMANDS, Option, module_of, options_of

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "options.md")
BLOCK = re.compile(r"<!-- (?P<name>\w+): .*? -->\n(?P<text>.*?)<!-- end of (?P=name) -->\n", re.DOTALL)

OWN = "castile's own"
LAYERS = "its stated layers, by hand"
TORCHVISION = "torchvision's"
META = "Meta's checkpoints"
# Every model, some at a published size, and whose the number of its parameters is.
COUNTED = {
    "mlp": OWN, "convnet": OWN, "lenet": LAYERS, "alexnet": TORCHVISION, "vgg": TORCHVISION, "inception": TORCHVISION,
    "resnet": OWN, "resnet:depth=50": TORCHVISION, "resnet:depth=101": TORCHVISION, "resnext": TORCHVISION,
    "wide_resnet": TORCHVISION, "vit": TORCHVISION, "lstm": OWN, "seq2seq": OWN, "rnnlm": LAYERS, "rnntc": LAYERS,
    "nmt": LAYERS, "bert": "Google's checkpoints", "gpt": OWN, "gpt:size=124m": "OpenAI's checkpoints",
    "gpt:size=1.5b": "OpenAI's checkpoints", "gpt:size=175b": LAYERS, "llama": OWN, "llama:size=2-70b": META,
    "llama:size=8b": META, "llama:size=70b": META, "llama:size=405b": META, "moe": OWN, "moe:size=70b": LAYERS,
    "moe:size=8x7b": "Mistral's checkpoints", "dlrm": OWN, "dlrm:size=terabyte": LAYERS, "xdl": LAYERS,
    "candle_uno": LAYERS,
}  # fmt: skip


def page(text: str) -> str:
    """A page with its tables as the code has them now."""

    def block(found: re.Match[str]) -> str:
        head, end = found[0].partition("\n")[0], f"<!-- end of {found['name']} -->\n"
        return f"{head}\n{TABLES[found['name']]()}{end}"

    return BLOCK.sub(block, text)


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Markdown; a blank line on both sides, or a page shows it as text."""
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * columns]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n" + "\n".join(lines) + "\n\n"


# What commands take.


def commands() -> str:
    """A row for each command: the words that it has to be given, and its options with their defaults."""
    return table("command | what it does | options", (
        (f"`{_usage(name)}`", _sentence(_docstring(module_of(name).COMMAND)),
         " ".join(f"`{option}`" for option in options_of(name) if option.default is not MISSING))
        for name in COMMANDS
    ))  # fmt: skip


def options() -> str:
    """For each command a table of all that it takes."""
    return "\n".join(
        f"\n## `castile {_usage(name)}`\n\n{_docstring(module_of(name).COMMAND)}\n"
        + table("option | default | what it is", ((f"`{o.typed}`", _default(o), o.help) for o in options_of(name)))
        for name in COMMANDS
    )


def _usage(name: str) -> str:
    return " ".join([name, *(str(option) for option in options_of(name) if option.default is MISSING)])


def _default(option: Option) -> str:
    if option.default is MISSING:
        return "has to be given"
    return "" if option.is_open else f"`{option.default}`"


# What there is by name.


def zoo() -> str:
    """A row for each model, and for some of their published sizes."""
    return table("model | what it is | settings | parameters | counted by", (
        (f"`{text}`", *(("", "") if ":" in text else _known(text)), f"{num_params(text):,}", source)
        for text, source in COUNTED.items()
    ))  # fmt: skip


def num_params(text: str) -> int:
    """The parameters of a model as it is planned."""
    return sum(prod(t.shape) for t in models.parse(text).graph(2).params)


def _known(name: str) -> tuple[str, str]:
    module = importlib.import_module(f"castile.launch.models.{name}")
    return _clause(_docstring(module)), _settings(_defaults(module.build, ("batch", "dtype", "training")))


def datasets() -> str:
    """A row for each data set, and a row for each setting of one that its function tells of."""
    rows = [(name, importlib.import_module(f"castile.launch.data.{name}")) for name in data.available()]
    every = table("data set | what it is | settings | what a sample is", (
        (f"`{name}`", _first(module), _settings(_defaults(module.load, data.RESERVED)), _docstring(module.load))
        for name, module in rows
    ))  # fmt: skip
    return every.rstrip("\n") + "\n" + table("data set | setting | what it is", (
        (f"`{name}`", f"`{setting}`", words)
        for name, module in rows for setting, words in told(module.load).items()
    ))  # fmt: skip


def told(function: Callable[..., Any]) -> dict[str, str]:
    """What the lines `setting   words` of a function's docstring say of its settings; deeper lines go on with one."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if begin := re.match(r"(\w+(?:, \w+)*)(?:   +|: )(\S.*)", line):
            names = [name for name in begin[1].split(", ") if name in inspect.signature(function).parameters]
            found.update(dict.fromkeys(names, begin[2]))
        elif line.startswith("   "):
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
        else:
            names = []
    return found


def searching() -> str:
    """A row for each search."""
    rows = ((name, importlib.import_module(f"castile.planner.searches.{name}")) for name in searches.available())
    return table("search | what it does | budget of its own", (
        (f"`{name}`", _first(module), f"`{module.BUDGET}`") for name, module in rows
    ))  # fmt: skip


def presets() -> str:
    """A row for each machine that comes with castile, but for this host and one device as several."""
    return table("machine | what it is | processors | memory of each | links, GB/s | figures from", (
        _preset(name) for name in machines.presets() if name not in ("local", "virtual")
    ))  # fmt: skip


def _preset(name: str) -> tuple[str, ...]:
    node, two, usual = (machines.parse(text) for text in (f"{name}:nodes=1", f"{name}:nodes=2", name))
    first = node.processors[0]
    nodes = usual.num_procs // node.num_procs
    lines = (ROOT / "runtime" / "machines" / f"{name}.toml").read_text().splitlines()
    comment = " ".join(line[1:].strip() for line in lines[: next(n for n, x in enumerate(lines) if x[:1] != "#")])
    sources = re.search(r"Sources(?: besides)?: (.*?)\.(?: Rates|$)", comment)
    assert sources, f"{name}.toml does not say where its figures are from"
    links = ", ".join(f"{level.name} {level.bytes_per_second / 1e9:.3g}" for level in two.levels)
    processors = f"{f'{nodes} x ' if nodes > 1 else ''}{node.num_procs} {first.kind}"
    memory = f"{first.memory_bytes / 2**30:.1f} GiB"
    return f"`{name}`", _clause(comment), processors, memory, links, sources[1]


def updating() -> str:
    """A row for each optimizer."""
    return table("optimizer | what it is | settings", (
        (f"`{name}`", _first(sys.modules[ops.find(name).__module__]), _settings(_defaults(ops.find(name))))
        for name in optimizers.available()
    ))  # fmt: skip


def schedules() -> str:
    """A row for each schedule of the learning rate."""
    return table("schedule | what it is | settings", (
        (f"`{name}`", _sentence(_docstring(function)), _settings(_defaults(function, ("step", "num_steps"))))
        for name, function in ((name, rates.parse(name).function) for name in rates.available())
    ))  # fmt: skip


def layering() -> str:
    """A row for each layer of a graph: how it is called, its axes, and the first sentence of its file."""
    owners = {name: ops.find(name) for name in ops.available() if hasattr(ops.find(name), "layer")}
    found = {name: (owner.layer, _axes(owner), owner.__module__) for name, owner in owners.items()}
    found |= {name: (layers.find(name), "", layers.find(name).__module__) for name in layers.available()}
    return table("layer | axes | what it is", (
        (f"`{_call(name, layer)}`", axes, _first(sys.modules[module]))
        for name, (layer, axes, module) in sorted(found.items())
    ))  # fmt: skip


def _axes(owner: type[ops.Op]) -> str:
    """The operator's axis line, with its own settings as they are by default; nothing where these say all of it."""
    is_open = owner.axis_line is not ops.Op.axis_line and not re.search(r"\w", owner.line)
    return "" if is_open else f"`{owner.line.strip()}`"


def _call(name: str, layer: Callable[..., Any]) -> str:
    """As it is written on a graph, with the operator's own settings where the layer leaves them to it."""
    parameters = list(inspect.signature(layer).parameters.values())[1:]
    if parameters[-1].name == "settings":
        # after the settings in their order
        parameters[-2:] = inspect.signature(ops.find(name)).parameters.values()
    return f"{name}{inspect.Signature([p.replace(annotation=p.empty) for p in parameters])}"


def _defaults(function: Callable[..., Any], reserved: Iterable[str] = ()) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in set(reserved)}


def _settings(defaults: Mapping[str, Any]) -> str:
    """Each with its default; only its name where that leaves it open."""
    return " ".join(f"`{name}`" if _is_open(value) else f"`{name}={_word(value)}`" for name, value in defaults.items())


def _is_open(value: Any) -> bool:
    return value in ("", None) or (type(value) is int and value == 0)


def _word(value: Any) -> str:
    """As a user types it."""
    return str(value).lower() if type(value) is bool else f"{value:g}" if type(value) is float else str(value)


def _docstring(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _first(module: Any) -> str:
    return _sentence(_docstring(module))


def _sentence(text: str, ends: str = ".") -> str:
    """A text up to its first full stop that is in no bracket."""
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and letter in ends and text[n + 1 : n + 2] in (" ", ""):
            return text[:n]
    return text


def _clause(text: str) -> str:
    """A text up to its first stop of any kind."""
    return _sentence(text, ".:;")


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (commands, options, zoo, datasets, searching, presets, updating, schedules, layering)
}


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()))
