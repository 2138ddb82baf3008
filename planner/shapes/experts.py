"""What kernels of mixtures of experts give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, need, same


def _queue_working(outs: Results, accumulate: bool, experts: Spec, *, num_experts: int, capacity: int) -> int:
    return 8 * num_experts


@kernel(working=_queue_working)
def queue(experts: Spec, *, num_experts: int, capacity: int) -> Results:
    """Like experts, int32."""
    integers("queue", experts=experts)
    need(len(experts.shape) == 3, f"queue: experts must be [b,s,k], not {experts.shape}")
    return (Spec(experts.shape, "int32"),)


@kernel(adds=True)
def dispatch(
    x: Spec,
    experts: Spec,
    slots: Spec,
    *gates: Spec,
    num_experts: int,
    capacity: int,
    first_expert: int,
    first_slot: int,
) -> Results:
    """[num_experts, b, capacity, d]."""
    _check("dispatch", experts, slots, gates)
    need(x.shape[:-1] == experts.shape[:-1], f"dispatch: x {x.shape} must be [b,s,d] of experts {experts.shape}")
    return (Spec((num_experts, x.shape[0], capacity, x.shape[-1]), x.dtype),)


@kernel(adds=True)
def combine(y: Spec, experts: Spec, slots: Spec, *gates: Spec, first_expert: int, first_slot: int) -> Results:
    """[b, s, d]."""
    _check("combine", experts, slots, gates)
    need(len(y.shape) == 4, f"combine: y must be [e,b,c,d], not {y.shape}")
    same("combine: samples", y=y.shape[1], experts=experts.shape[0])
    return (Spec((*experts.shape[:2], y.shape[-1]), y.dtype),)


@kernel(adds=True)
def gate_grad(dy: Spec, y: Spec, experts: Spec, slots: Spec, *, first_expert: int, first_slot: int) -> Results:
    """[b, s, k]."""
    _check("gate_grad", experts, slots, ())
    need(len(y.shape) == 4, f"gate_grad: y must be [e,b,c,d], not {y.shape}")
    same("gate_grad: tokens", dy=dy.shape, y=(*experts.shape[:2], y.shape[-1]))
    return (Spec(experts.shape, y.dtype),)


@kernel()
def expert_share(experts: Spec, *, num_experts: int, first_expert: int, dtype: str) -> Results:
    """[b, num_experts]."""
    integers("expert_share", experts=experts)
    need(len(experts.shape) == 3, f"expert_share: experts must be [b,s,k], not {experts.shape}")
    return (Spec((experts.shape[0], num_experts), dtype),)


def _check(what: str, experts: Spec, slots: Spec, gates: tuple[Spec, ...]) -> None:
    integers(what, experts=experts, slots=slots)
    need(len(experts.shape) == 3, f"{what}: experts must be [b,s,k], not {experts.shape}")
    need(len(gates) < 2, f"{what}: it takes one array of gates, not {len(gates)}")
    same(f"{what}: shapes", experts=experts.shape, slots=slots.shape, **{"gates": gates[0].shape} if gates else {})
