"""Tables of README.md and docs/options.md as the code has them; `python -m tests.documented` writes them there.

A table stands between two marks, `<!-- NAME: ... -->` and `<!-- end of NAME -->`, and is the function NAME of this
file. It does not know what else the pages say.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Any

from castile.launch.reports.catalogue import KINDS, Entry, docstring, first, num_params, sentence, typed
from castile.planner import layers
from castile.planner import op as ops
from tests.command_lines import COMMANDS, Option, module_of, options_of

# Pages and tests ask for the same.
num_params = cache(num_params)
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
        (f"`{_usage(name)}`", sentence(docstring(module_of(name).COMMAND)),
         " ".join(f"`{option}`" for option in options_of(name) if option.default is not MISSING))
        for name in COMMANDS
    ))  # fmt: skip


def options() -> str:
    """For each command a table of all that it takes."""
    return "\n".join(
        f"\n## `castile {_usage(name)}`\n\n{docstring(module_of(name).COMMAND)}\n"
        + table("option | default | what it is", ((f"`{o.typed}`", _default(o), o.help) for o in options_of(name)))
        for name in COMMANDS
    )


def _usage(name: str) -> str:
    return " ".join([name, *(str(option) for option in options_of(name) if option.default is MISSING)])


def _default(option: Option) -> str:
    if option.default is MISSING:
        return "required"
    return "" if option.is_open else f"`{option.default}`"


# What there is by name.


def zoo() -> str:
    """A row for each model, and for some of their published sizes."""
    known = {one.name: (one.what, _settings(one)) for one in KINDS["models"]()}
    return table("model | what it is | settings | parameters | counted by", (
        (f"`{text}`", *known.get(text, ("", "")), f"{num_params(text):,}", source) for text, source in COUNTED.items()
    ))  # fmt: skip


def datasets() -> str:
    """A row for each data set, and a row for each setting of one that its function tells of."""
    every = [*KINDS["data"]()]
    head = table("data set | what it is | settings | what a sample is", (
        (f"`{one.name}`", one.what, _settings(one), one.gives) for one in every
    ))  # fmt: skip
    return head.rstrip("\n") + "\n" + table("data set | setting | what it is", (
        (f"`{one.name}`", f"`{setting}`", words) for one in every for setting, words in one.notes.items()
    ))  # fmt: skip


def searching() -> str:
    """A row for each search."""
    return table("search | what it does | budget of its own", (
        (f"`{one.name}`", one.what, f"`{one.figures['budget']}`") for one in KINDS["searches"]()
    ))  # fmt: skip


def presets() -> str:
    """A row for each machine that comes with castile, but for this host and one device as several."""
    return table("machine | what it is | processors | memory of each | links, GB/s | figures from", (
        _preset(one) for one in KINDS["machines"]() if one.name not in ("local", "virtual")
    ))  # fmt: skip


def _preset(one: Entry) -> tuple[str, ...]:
    of, nodes = one.figures, one.settings["nodes"]
    assert of["sources"], f"{one.name}.toml does not say where its figures are from"
    links = ", ".join(f"{name} {rate / 1e9:.3g}" for name, rate in of["link_bytes_per_second"].items())
    processors = f"{f'{nodes} x ' if nodes > 1 else ''}{of['num_procs_per_node']} {of['processor']}"
    return f"`{one.name}`", one.what, processors, f"{of['memory_bytes'] / 2**30:.1f} GiB", links, of["sources"]


def updating() -> str:
    """A row for each optimizer."""
    return table("optimizer | what it is | settings", (
        (f"`{one.name}`", one.what, _settings(one)) for one in KINDS["optimizers"]()
    ))  # fmt: skip


def schedules() -> str:
    """A row for each schedule of the learning rate."""
    return table("schedule | what it is | settings", (
        (f"`{one.name}`", one.what, _settings(one)) for one in KINDS["schedules"]()
    ))  # fmt: skip


def layering() -> str:
    """A row for each layer of a graph: how it is called, its axes, and the first sentence of its file."""
    owners = {name: ops.find(name) for name in ops.available() if hasattr(ops.find(name), "layer")}
    found = {name: (owner.layer, _axes(owner), owner.__module__) for name, owner in owners.items()}
    found |= {name: (layers.find(name), "", layers.find(name).__module__) for name in layers.available()}
    return table("layer | axes | what it is", (
        (f"`{_call(name, layer)}`", axes, first(sys.modules[module]))
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


def _settings(one: Entry) -> str:
    """Each with its default; only its name where that leaves it open."""
    return " ".join(f"`{typed(*setting)}`" for setting in one.settings.items())


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (commands, options, zoo, datasets, searching, presets, updating, schedules, layering)
}


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()))
