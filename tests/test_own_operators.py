"""An operator may stand in a model's own file: a graph that gets it looks at its bodies, and tells in one sentence what
is wrong with them.
"""

import inspect
import re
from functools import wraps

import numpy as np
import pytest

from castile.kernels import expression
from castile.launch.__main__ import main
from castile.launch.training import split_check
from castile.planner.bodies.vocabulary import Spec
from castile.planner.families.elementwise import Unary
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import PASSES, Init, Op, available, find, op
from castile.planner.shapes.elementwise import FUNCTIONS, pointwise
from castile.runtime import machine
from tests.op_cases import Case, cases_of, every_case
from tests.op_laws import passes

OWN = """
from castile.planner.families.elementwise import Unary
from castile.planner.graph import Graph
from castile.planner.op import Op, op


@op("... -> ...", flops_per_point=8)
class Twice(Unary):
    value = "x -> x + x"
    slope = "d -> d + d"


@op("b i, *o i -> b o", flops_per_point=2)
class Product(Op):
    def forward(self, k, x, w):         return k.contract("bi,oi->bo", x, w)
    def grad_inputs(self, k, dy, x, w): return (k.contract("bo,oi->bi", dy, w),)
    def grad_params(self, k, dy, x, w): return (k.contract("bo,bi->oi", dy, x),)


def build(batch=None, dtype="float32"):
    from castile.planner.op import Init
    g = Graph("own", dtype)
    image = g.input("image", (batch or 32, 1, 8, 8), "b c h w")
    label = g.input("label", (batch or 32,), "b", "int32")
    x = g.reshape("flat", image, "b c h w -> b (c h w)")
    x = g.apply(Product(), "fc", x, g.param("fc.weight", (10, 64), ("o", "i"), Init("normal", 0.1)))
    logits = g.apply(Twice(), "twice", x)
    g.minimise(g.cross_entropy("loss", logits, label))
    return g
"""
WRONG = {
    "no such kernel": ('k.contract("bo,bi->oi", dy, x)', "k.product(dy, x)", "fc .*grad_params: there is no kernel"),
    "turned": ("bo,bi->oi", "bo,bi->io", r"grad_params gives \(64, 10\) for operand 1, .* is \(10, 64\)"),
    "right as a whole, wrong in parts": (
        'return (k.contract("bo,oi->bi", dy, w),)',
        "return (k.zero(shape=(32, 64), dtype=x.dtype),)",
        r"grad_inputs gives \(32, 64\) for operand 0 where b is cut from 32 to 16, .* is \(16, 64\)",
    ),
    "no such array": ("d -> d + d", "d, z -> d * z", "grad_inputs: .*there is no array 'z', only d, x, y"),
    "no such number": ("d -> d + d", "d -> d * c", "'c' is neither an array of the line nor a setting"),
    "no such function": ("d -> d + d", "d -> tan(d)", "there is no function 'tan'"),
    "no arithmetic": ("d -> d + d", "d -> d +", "'d .' is no arithmetic"),
    "no slope": ('    slope = "d -> d + d"', "", "has no attribute 'slope'"),
}


def elsewhere(case: Case, **bodies):
    """The operator of a case as if it stood in this file, some of its bodies replaced."""
    return type(type(case.op).__name__, (type(case.op),), bodies)(**dict(case.op.settings))


def applied(case: Case, operator) -> Graph:
    g = Graph("g", case.tensors[0].dtype)
    g.tensors.update({t.name: t for t in case.tensors})
    g.apply(operator, "it", *case.tensors)
    return g


@every_case
def test_what_is_right_is_taken(case: Case):
    assert split_check.remarks(applied(case, elsewhere(case))) == []


class Bodies:
    """Of operators that are right in one piece."""

    class Softmax(Op):
        def forward(self, k, x):
            return k.softmax(x)

        def grad_inputs(self, k, dy, x, *, y):
            return (k.softmax_grad(dy, y[0]),)

    class Largest(Op):
        def forward(self, k, x):
            return k.max_over(x, dims=(1,))

    class Affine(Op):
        def forward(self, k, x, w, c):
            return k.add_bias(k.contract("bi,oi->bo", x, w), c, dim=1)

        def grad_inputs(self, k, dy, x, w, c):
            return (k.contract("bo,oi->bi", dy, w),)

    class Weighed(Op):
        def forward(self, k, x):
            return k.pointwise("x -> 3 * x", x)

        def grad_inputs(self, k, dy, x):
            return (k.pointwise(f"d -> {x.shape[1] / 2} * d", dy),)


@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        (Bodies.Softmax, "b d -> b d", {"d": "results"}),
        (Bodies.Softmax, "b d! -> b d!", {}),
        (Bodies.Largest, "b d -> b", {"d": "results"}),
        (Bodies.Largest, "b d! -> b", {}),
        (Bodies.Affine, "b i, *o i, *o -> b o", {"i": "results"}),
        (Bodies.Affine, "b i!, *o i!, *o -> b o", {}),
        (Bodies.Weighed, "b d -> b d", {"d": "gradients"}),
        (Bodies.Weighed, "b d! -> b d!", {}),
    ],
)
def test_an_axis_that_may_not_be_split_and_says_nothing_of_it_is_told(body, line: str, told: dict[str, str]):
    mine = op(line, flops_per_point=1)(type("Mine", (body,), {}))
    g = Graph("g", "float64")
    x = g.input("x", (5, 6), "b c")
    shapes = {"w": ((4, 6), ("o", "i")), "c": ((4,), ("o",))}
    more = [g.param(n, *of, Init("zeros")) for n, of in shapes.items()] if body is Bodies.Affine else []
    g.apply(mine(), "it", x, *more)
    lines = split_check.remarks(g)
    assert len(lines) == len(told)
    for text, (axis, what) in zip(lines, told.items(), strict=True):
        assert f"in parts along '{axis}' it has other {what} than in one piece (at it)" in text and f"{axis}!" in text


def test_what_a_run_is_told_of_an_operator_before_it_is_cut(alone, capsys):
    wrong = OWN.replace('g.apply(Twice(), "twice", x)', 'g.apply(Share(), "share", x)')
    lines = ["@op('b c -> b c', flops_per_point=8)", "class Share(Op):"]
    lines.append("    def forward(self, k, x): return k.softmax(x)")
    lines.append("    def grad_inputs(self, k, dy, x, *, y): return (k.softmax_grad(dy, y[0]),)")
    (alone / "own.py").write_text(wrong.replace("def build", "\n".join([*lines, "", "", "def build"])))
    assert main(["train", "own.py", "--search", "data_parallel", "--steps", "1"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("castile: own.Share: in parts along 'c' it has other results than in one piece (at share)")


@pytest.mark.parametrize("name", available())
def test_a_body_of_too_many_results_is_refused(name: str):
    case = cases_of(name)[0]
    for which in passes(case):
        body = PASSES[which]
        right = getattr(type(case.op), body)

        @wraps(right)
        def wrong(*operands, right=right, **asked):
            made = right(*operands, **asked)
            return (*(made if isinstance(made, tuple) else (made,)), None)

        with pytest.raises(ValueError, match=f"^it .*{body}"):
            applied(case, elsewhere(case, **{body: wrong}))


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_sentence_with_its_line(what: str, alone, capsys):
    old, new, words = WRONG[what]
    (alone / "own.py").write_text(OWN.replace(old, new))
    assert main(["plan", "own.py", "--machine", "dgx-h100:nodes=1", "--search", "data_parallel"]) == 2
    err = capsys.readouterr().err
    assert re.match(r"castile: model file own.py: build\(\) failed: ", err) and err.count("\n") == 1, err
    assert re.search(words, err) and re.search(r"\(line \d+\)$", err.strip()), err


@pytest.mark.parametrize("lacking", ["grad_inputs", "grad_params"])
def test_an_operator_without_a_gradient_that_training_needs_is_told(lacking: str, alone, capsys):
    # a second product hands its gradient on to the first
    twice = OWN.replace("logits = g.apply(Twice()", "x = g.apply(Product(), 'fc2', x, g.param('w', (10, 10), "
                        "('o', 'i'), Init('normal', 0.1)))\n    logits = g.apply(Twice()")  # fmt: skip
    twice = twice.replace("    return g\n", "    g.outputs = [logits.name]\n    return g\n")
    (alone / "own.py").write_text("\n".join(line for line in twice.split("\n") if f"def {lacking}" not in line))
    words = ["plan", "own.py", "--machine", "dgx-h100:nodes=1", "--search", "data_parallel"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert re.search(rf"fc2 \(own.Product\): no gradient of its operand \d .*: write {lacking}$", err.strip()), err
    assert err.count("\n") == 1
    assert main([*words, "--objective", "latency"]) == 0


def test_operators_of_one_file_have_names_of_their_own():
    """Else what one took would be the price of the other."""

    @op("b c -> b c", flops_per_point=1)
    class First(Unary):
        value, slope = "x -> x + x", "d -> d + d"

    @op("b c -> b c", flops_per_point=1)
    class Second(Unary):
        value, slope = "x -> tanh(x)", "d, y -> d * (1 - y * y)"

    def named(*kinds):
        g = Graph("g")
        x = g.input("x", (4, 6), "b c")
        for kind in kinds:
            x = g.apply(kind(), f"n{len(g.nodes)}", x)
        g.minimise(g.mean("loss", x))
        return g

    assert named(First).fingerprint != named(Second).fingerprint
    lowering = Lowering(named(First, Second), machine.parse("local:procs=2"))
    keys = {key.work for key in lowering.lower(seeds(lowering)["data_parallel"]).cost_keys}
    assert {"test_own_operators.First.F", "test_own_operators.Second.F"} <= keys


@pytest.mark.parametrize(
    ("line", "results", "many"), [("b d -> b d, b", ("",), "2 results, and @op has labels for 1: give as many"),
                                  ("b d -> b d", ("", "norm"), "1 results, and @op has labels for 2: give as many")]
)  # fmt: skip
def test_a_line_of_other_results_than_have_labels_is_refused(line: str, results: tuple[str, ...], many: str) -> None:
    mine, g = op(line, results=results)(type("Mine", (Bodies.Softmax,), {})), Graph("g")
    with pytest.raises(ValueError, match=rf"^it \(.*Mine\): its axis line has {many}"):
        g.apply(mine(), "it", g.input("x", (4, 6), "b c"))


@pytest.mark.parametrize(("results", "flows"), [((), 0), (("y",), 1), (("", "a", "a"), 1), (("", "a"), 3), (("",), -1)])
def test_labels_that_name_no_results_are_refused(results: tuple[str, ...], flows: int) -> None:
    with pytest.raises(ValueError, match=r"^operator Mine: results=.* are labels that differ, the first empty"):
        op("b d -> b d", results=results, flows=flows)(type("Mine", (Bodies.Softmax,), {}))


LINES = [
    *("x -> tan(x)", "x -> x +", "x -> x * y", "x -> lambda", "x -> "),
    *("x -> x ** 2", "x -> x % 2", "x -> x if x > 0 else 0", "x -> x.real", "x -> x[0]", "x -> not x", "x -> x != 0"),
    *("x -> 0 < x < 1", "x -> exp(x, x)", "x -> where(x > 0, x)", "x -> exp(x=x)", "x -> 'x'", "x -> True", "x -> 1j"),
]


@pytest.mark.parametrize("name", ["rows", "looks", "name", "flops", "place_in_literals", "forward"])
def test_a_setting_that_hides_what_operators_are_asked_is_refused(name: str) -> None:
    """Costs would call a number where they ask for rows of images."""
    mine = type("Mine", (Unary,), {"__annotations__": {name: int}, name: 3})
    with pytest.raises(ValueError, match=f"^operator Mine: every operator has '{name}' of its own: call the setting"):
        op("... -> ...")(mine)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, np.arange(3), (1, [2]), object(), len])
def test_a_setting_that_is_no_value_is_refused(value: object) -> None:
    """It would have no hash, or another one in each process."""

    @op("... -> ...")
    class Mine(Unary):
        value, slope = "x -> x", "d -> d"
        how: object = ()

    g = Graph("g")
    x = g.input("x", (4, 6), "b c")
    g.apply(Mine((1, 2.0, "three", True, None, (np.float32(4),))), "plain", x)
    with pytest.raises(ValueError, match=r"^it \(.*Mine\): its setting 'how' is of type "):
        g.apply(Mine(value), "it", x)


@pytest.mark.parametrize("given", [find("relu"), "relu", None])
def test_what_is_no_operator_is_refused(given: object) -> None:
    g = Graph("g")
    x = g.input("x", (4, 6), "b c")
    with pytest.raises(ValueError, match=r"^it: its operator is (the class Relu|of type (str|NoneType)): give one of"):
        g.apply(given, "it", x)


def test_the_planner_knows_the_functions_of_lines_that_kernels_have():
    assert FUNCTIONS == expression.FUNCTIONS


@pytest.mark.parametrize("text", LINES)
def test_a_line_that_kernels_would_refuse_is_refused_in_words(text: str):
    with pytest.raises(ValueError, match="pointwise"):
        pointwise(text, Spec((3,), "float32"))


@pytest.mark.parametrize("name", [n for n in available() if issubclass(find(n), Unary)])
def test_settings_of_a_layer_may_be_given_in_their_order(name: str):
    parameters = inspect.signature(find(name)).parameters
    g = Graph("g")
    x = g.input("x", (4, 6), "b c")
    values = [p.default / 2 for p in parameters.values()]
    getattr(g, name)("ordered", x, *values)
    getattr(g, name)("named", x, **dict(zip(parameters, values)))
    assert g.nodes["ordered"].op == g.nodes["named"].op == find(name)(*values)
