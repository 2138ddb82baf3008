"""What kernels of recurrent cells give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need


@kernel()
def lstm_cell(x: Spec, bias: Spec, r: Spec, c: Spec) -> Results:
    """h, c, gates."""
    state = _state("lstm_cell", 4, x)
    like("lstm_cell", x=x, r=r)
    like("lstm_cell", c=c, state=state)
    like("lstm_cell", bias=bias, **{"the gates": Spec(x.shape[2:], x.dtype)})
    return state, state, x


@kernel()
def lstm_cell_grad(dh: Spec, dc: Spec, gates: Spec, before: Spec, c: Spec) -> Results:
    """dx, dc."""
    state = _state("lstm_cell_grad", 4, gates)
    like("lstm_cell_grad", dh=dh, dc=dc, before=before, c=c, state=state)
    return gates, state


@kernel()
def gru_cell(x: Spec, bias_x: Spec, r: Spec, bias_r: Spec, h: Spec) -> Results:
    """h, gates."""
    state = _state("gru_cell", 3, x)
    like("gru_cell", x=x, r=r)
    like("gru_cell", h=h, state=state)
    like("gru_cell", bias_x=bias_x, bias_r=bias_r, **{"the gates": Spec(x.shape[2:], x.dtype)})
    return state, _gated(state, 4)


@kernel()
def gru_cell_grad(dh: Spec, gates: Spec, h: Spec) -> Results:
    """dx, dr, dh."""
    state = _state("gru_cell_grad", 4, gates)
    like("gru_cell_grad", dh=dh, h=h, state=state)
    return _gated(state, 3), _gated(state, 3), state


def _state(what: str, num_gates: int, x: Spec) -> Spec:
    fits = len(x.shape) == 4 and x.shape[1:3] == (1, num_gates)
    need(fits, f"{what}: gates of shape {x.shape} should be (samples, 1, {num_gates}, units)")
    return Spec((x.shape[0], 1, x.shape[3]), x.dtype)


def _gated(state: Spec, num_gates: int) -> Spec:
    return Spec((*state.shape[:2], num_gates, state.shape[2]), state.dtype)
