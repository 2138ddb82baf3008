"""PyTorch's samples read as operators: attention."""

from castile.planner.ops.attention import Attention
from tests.opinfo_cases import Read, Skip, refuse, torch_name


@torch_name("nn.functional.scaled_dot_product_attention")
def from_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    given = {"attn_mask": attn_mask is not None, "dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    refuse(given, attn_mask=False, dropout_p=0.0, scale=None, enable_gqa=q.ndim == 4 and enable_gqa)
    shared = q.shape[1] // k.shape[1] if q.ndim == 4 and enable_gqa else 1
    heads_apart = [t.shape[:1] if q.ndim == 4 and enable_gqa else t.shape[:-2] for t in (q, k, v)]
    if q.ndim not in (3, 4) or len(set(heads_apart)) > 1:
        raise Skip("batches are not alike")
    if q.shape[-1] != v.shape[-1]:
        raise Skip("values have another width than queries")
    heads = q.shape[1] if q.ndim == 4 else 1

    def merged(t):
        return t if t.ndim == 3 else t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1)

    def apart(y):
        return y if q.ndim == 3 else y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    return Read(Attention(heads // shared, is_causal, shared), [(t, merged, "b s d") for t in (q, k, v)], apart)
