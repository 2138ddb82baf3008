"""What is timed on a GPU: shapes of GPT-2, Llama and ResNet-50, and large ones that show a rate.

It does not know who computes them, nor how they are timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

WORDS = 50257


@dataclass(frozen=True)
class Product:
    """c [m,n] = a [m,k] times b [k,n]; of `layout` a letter for each of a and b: "t" where it lies transposed.

    line: what is made of each sum and of a bias [n], if anything.
    """

    m: int
    n: int
    k: int
    layout: str
    dtype: str = "bfloat16"
    line: str = ""

    @property
    def name(self) -> str:
        return f"product {self.m}x{self.n}x{self.k} {self.layout} {self.dtype} {self.line}".rstrip()

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Attention:
    """Queries [batch,length,heads*width] over as many keys of `groups` heads; forward, or its gradients."""

    batch: int
    heads: int
    groups: int
    length: int
    width: int
    causal: bool
    backward: bool

    @property
    def name(self) -> str:
        shape = f"{self.batch}x{self.length} heads {self.heads}/{self.groups} of {self.width}"
        return f"attention {shape} {'causal' if self.causal else 'full'} {'backward' if self.backward else 'forward'}"

    @property
    def flops(self) -> int:
        """As is usual: 4 bhssd forward, half of it where causal, and 2.5 times as many backward."""
        forward = 4 * self.batch * self.heads * self.length**2 * self.width
        return forward * (5 if self.backward else 2) // (4 if self.causal else 2)


@dataclass(frozen=True)
class Convolution:
    """Images [batch,channels,size,size] to `outputs` channels; `which` of "forward", "input" and "weight" is made.

    innermost: images have their channels innermost, but for pictures, which the host provides.
    """

    batch: int
    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int
    which: str
    groups: int = 1
    # How often a ResNet-50 has it.
    count: int = 1
    innermost: bool = False

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def result(self) -> int:
        """Rows of the result."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        how = f"{self.kernel}x{self.kernel}/{self.stride}" + (f" groups {self.groups}" if self.groups > 1 else "")
        last = " channels last" if self.innermost else ""
        return f"convolution {self.batch}x{self.channels}x{self.size} to {self.outputs} {how} {self.which}{last}"

    @property
    def flops(self) -> int:
        places = self.batch * self.result**2
        return 2 * places * self.outputs * self.channels // self.groups * self.kernel**2


@dataclass(frozen=True)
class Loss:
    """Softmax cross-entropy of rows of logits, forward and backward together; outermost: classes are so in memory."""

    rows: int
    classes: int
    outermost: bool = False

    @property
    def name(self) -> str:
        return f"cross_entropy {self.rows}x{self.classes} forward and backward{' classes first' * self.outermost}"

    @property
    def nbytes(self) -> int:
        """Logits read twice, and their gradient written, in bfloat16."""
        return 3 * 2 * self.rows * self.classes


@dataclass(frozen=True)
class Update:
    """AdamW of all parameters of GPT-2 of 124 million, in float32."""

    name: str = "adamw of GPT-2"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        block = ((2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), *[(768,)] * 5)
        return ((WORDS, 768), (1024, 768), *block * 12, (768,), (768,))

    @property
    def nbytes(self) -> int:
        """Parameter and two moments read and written, the gradient read."""
        return 7 * 4 * sum(map(prod, self.shapes))


class Stream(NamedTuple):
    """A kernel that memory bounds, by its name, the shapes of its operands, and its settings.

    Operands with numbers in `wide` are statistics, in float32 whatever the others are.

    Its peer is a copy that moves as many bytes.
    """

    kernel: str
    shapes: tuple[tuple[int, ...], ...]
    params: tuple[tuple[str, object], ...] = ()
    line: str = ""
    dtype: str = "bfloat16"
    wide: tuple[int, ...] = ()

    def dtype_of(self, operand: int) -> str:
        """What an operand holds."""
        return "float32" if operand in self.wide else self.dtype

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.shapes[0]))
        over = "".join(f"over {value}" for key, value in self.params if key == "dims" and self.kernel == "sum_over")
        return " ".join(word for word in (self.kernel, self.line, shape, over) if word)


class Step(NamedTuple):
    """A training step of a model, by AdamW, on the whole device or on virtual ones that divide it.

    tuned   whether each kernel call runs in the way that is fastest
    """

    model: str
    batch: int
    tuned: bool
    dtype: str = "bfloat16"
    machine: str = "local"

    @property
    def is_whole(self) -> bool:
        """Whether one processor has all of the device."""
        return self.machine == "local"

    @property
    def name(self) -> str:
        how = ["tuned" * self.tuned, self.machine * (not self.is_whole)]
        return " ".join(["step of", self.model, "batch", str(self.batch), self.dtype, *filter(None, how)])


Case = Product | Attention | Convolution | Loss | Update | Stream | Step

_LAYOUTS = ("nt", "nn", "tn")
_SQUARES = ((4096, 4096, 4096), (8192, 8192, 8192))
_GPT = ((8192, 2304, 768), (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, WORDS, 768))
# Those with logits whose classes are outermost: they themselves, and the gradients of what they are made of.
_CLASSES_FIRST = ((WORDS, 8192, 768, "nt"), (8192, 768, WORDS, "tn"), (WORDS, 768, 8192, "nn"))


def products() -> list[Product]:
    """Square ones, whose rate is promised, and those of GPT-2, forward with biases too, and one with an activation."""
    plain = [Product(*shape, layout) for shape in (*_SQUARES, *_GPT) for layout in _LAYOUTS]
    plain += [Product(*one) for one in _CLASSES_FIRST]
    biased = [Product(*shape, "nt", line="s, b -> s + b") for shape in _GPT if shape[1] != WORDS]
    return [*plain, *biased, Product(8192, 3072, 768, "nt", line="s, b -> (s + b) * sigmoid(1.702 * (s + b))")]


def attentions() -> list[Attention]:
    """Those of GPT-2 and Llama, and long ones."""
    shapes = (
        (8, 12, 12, 1024, 64, True),
        (8, 32, 8, 1024, 128, True),
        (4, 32, 8, 4096, 128, True),
        (4, 16, 16, 4096, 128, False),
        (4, 32, 32, 4096, 64, False),
        (2, 16, 16, 8192, 128, True),
    )
    return [Attention(*shape, backward) for shape in shapes for backward in (False, True)]


def convolutions(batch: int = 64) -> list[Convolution]:
    """All of ResNet-50 (He et al. 2016, with strides on the 3x3 ones), in both layouts."""
    found: dict[tuple[int, ...], int] = {(3, 224, 64, 7, 2): 1}

    def add(*layer: int) -> None:
        found[layer] = found.get(layer, 0) + 1

    channels, size = 64, 56
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(depth):
            step = stride if block == 0 else 1
            add(channels, size, width, 1, 1)
            add(width, size, width, 3, step)
            if block == 0:
                add(channels, size, 4 * width, 1, step)
            size //= step
            add(width, size, 4 * width, 1, 1)
            channels = 4 * width
    return [
        Convolution(batch, *layer, which, count=count, innermost=innermost)
        for innermost in (False, True)
        for layer, count in found.items()
        for which in ("forward", "input", "weight")
        # Nobody asks for the gradient of the images.
        if layer[0] > 3 or which != "input"
    ]


def streams() -> list[Stream]:
    """Kernels of large transformers and of ResNet-50 that memory bounds."""
    tokens, wide, images = (16384, 4096), (8192, 16384), (128, 256, 56, 56)
    pools = (("kernel", (3, 3)), ("stride", (2, 2)), ("pads", (1, 1, 1, 1)))
    stem, pooled = (128, 64, 112, 112), (128, 64, 56, 56)
    moments = (("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("decay", 0.1), ("decoupled", True))
    turns = (("heads", 32), ("base", 1e4), ("offset", 0), ("interleaved", False), ("inverse", False))
    heads = (("apart", (8, 2048, 32, 128)), ("dims", (0, 2, 1, 3)), ("shape", (256, 2048, 128)))
    return [
        Stream("copy", (tokens,)),
        Stream("pointwise", (tokens, tokens), (), "x, y -> x + y"),
        Stream("gelu", (tokens,), (("approximate", "tanh"),)),
        Stream("gelu_grad", (tokens, tokens), (("approximate", "tanh"),)),
        Stream("layer_norm", (tokens, (4096,), (4096,)), (("eps", 1e-5),)),
        Stream("layer_norm_grad_input", (tokens, tokens, (4096,), (16384,), (16384,)), wide=(3, 4)),
        Stream("layer_norm_grad_params", (tokens, tokens, (16384,), (16384,)), wide=(2, 3)),
        Stream("rms_norm", (tokens, (4096,)), (("eps", 1e-5),)),
        Stream("rms_norm_grad_input", (tokens, tokens, (4096,), (16384,)), wide=(3,)),
        Stream("softmax", (wide,)),
        Stream("softmax_grad", (wide, wide)),
        Stream("softmax", ((8192, WORDS),)),
        Stream("sum_over", (tokens,), (("dims", (0,)),)),
        Stream("sum_over", (tokens,), (("dims", (1,)),)),
        Stream("square_sum", (tokens,)),
        Stream("rotary", ((8, 2048, 4096),), turns),
        Stream("rearrange", ((8, 2048, 4096),), heads),
        Stream("moments", (images,), (("scale", 1e-5),)),
        Stream("norm", (images, (3, 256)), wide=(1,)),
        Stream("norm_grad", (images, images, (3, 256)), wide=(2,)),
        Stream("max_pool2d", (stem,), pools),
        Stream("max_pool2d_grad", (pooled, stem), pools),
        Stream("adam", (tokens,) * 4 + ((), ()), moments, dtype="float32"),
    ]  # fmt: skip


def losses() -> list[Loss]:
    """That of GPT-2, and with its classes outermost."""
    return [Loss(8192, WORDS, outermost) for outermost in (False, True)]


def updates() -> list[Update]:
    """That of GPT-2."""
    return [Update()]


def virtual_steps() -> list[Step]:
    """A small one on virtual devices."""
    return [Step("gpt:layers=4,width=256,heads=4,seq=128", 8, True, machine="virtual:procs=2")]


def steps() -> list[Step]:
    """Those of GPT-2 and ResNet-50; what takes longest to tune is last."""
    # Blocks of classes are for processors that share them, and PyTorch has none.
    gpt, resnet = ("gpt:size=124m,class_blocks=1", 8), ("resnet:depth=50", 128)
    return [Step(*one, tuned) for tuned in (False, True) for one in (gpt, resnet)]


KERNELS = ("products", "attentions", "convolutions", "losses", "updates", "streams")
# Each in processes of its own: a device that was divided stays so. What takes longest is last.
WHOLE = ("virtual_steps", "steps")
KINDS = (*KERNELS, *WHOLE)


def listed(kind: str) -> list[Case]:
    """All cases of a kind, in their order."""
    found: list[Case] = globals()[kind]()
    return found


def named() -> dict[str, Case]:
    """All cases by name."""
    return {case.name: case for kind in KINDS for case in listed(kind)}


def is_promised(case: Case) -> bool:
    """Whether a figure is promised of the case; the others tell more. Steps have images with channels innermost."""
    if isinstance(case, Product):
        return (case.m, case.n, case.k) in _SQUARES
    return case.innermost if isinstance(case, Convolution) else not (isinstance(case, Loss) and case.outermost)


def peer(case: Case) -> str | None:
    """The name of the case as which PyTorch is timed beside this one: in all its layouts, whatever ours is, and with
    whatever settings ours has; None where it is not.
    """
    if isinstance(case, Convolution):
        return replace(case, innermost=False).name
    if isinstance(case, Loss):
        return replace(case, outermost=False).name
    if isinstance(case, Step):
        return case._replace(tuned=False).name if case.is_whole else None
    return case.name if isinstance(case, Attention | Update) else None


def is_compiled(case: Case) -> bool:
    """Whether what PyTorch runs of it is compiled first."""
    return isinstance(case, Loss | Update | Step)
