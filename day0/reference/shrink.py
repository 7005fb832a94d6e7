"""Shrink a config: the same architecture in small, so that its behaviour can be watched on a laptop.

Works on key names and values only, never on a model's identity. Layers: the shortest prefix that holds every distinct
combination. Sizes: small and, where the class accepts it, all distinct, in the order of the original ones. Budgets
(tokens an indexer keeps, a window) so small that they bite on `PROMPT_TOKENS` tokens.
"""

import copy
import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from day0.errors import Day0Error

PROMPT_TOKENS = 77  # odd, and no multiple of any chunk or pool in use
VOCABULARY = 311
POSITIONS = 512
BUDGET = 16
POOL = 4
EXPERTS = 8
# An index score is a weighted sum of relus: with few heads many scores are exactly zero, and ties decide.
INDEX_HEADS = 16
SIZE_STEP = 16
SMALL_WIDTH = 256
MAX_LAYERS = 12

_HEADS = re.compile(r"(^|_)heads$")
_INDEX = re.compile(r"^index")
_SIZES = re.compile(r"(_dim|_rank|_size|_width|lowrank|d_model|d_inner)$")
_NO_SIZE = re.compile(r"vocab|conv|kernel|chunk|patch|image|ngram_size|window|group_size")
_EXPERTS = re.compile(r"^(num|n)_(routed_|local_)?experts$")
_EXPERTS_PER_TOKEN = re.compile(r"experts_per_tok(en)?$|^moe_top_?k$")
_GROUPS = re.compile(r"^n_group$|expert_group$")
_GROUPS_KEPT = re.compile(r"^topk_group$")
_BUDGET = re.compile(r"^index.*(top_?k|budget)$|^sliding_window$|window_size$")
_POOL = re.compile(r"^index.*(pool|ratio)$")
_TOKEN_ID = re.compile(r"_token_ids?$")


def is_small(config: Any) -> bool:
    """Whether the text model can be run as it is: narrow, few layers, a small vocabulary."""
    text = config.get_text_config()
    return bool(text.hidden_size <= SMALL_WIDTH and text.num_hidden_layers <= MAX_LAYERS and text.vocab_size <= 1 << 14)


def shrink_config(config: Any, *, distinct: bool = True) -> tuple[Any, list[str]]:
    """A small config object of the same class, and what changed, one line per key ("text: hidden_size 4096 -> 128").

    A config that is small already keeps its sizes; only its budgets change. `distinct` gives keys of equal size
    different small sizes; without it equal sizes stay equal. Raises Day0Error when the class refuses the result.
    """
    text = config.get_text_config()
    layers = covering_layers(_fields(text))
    shrunk: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    small = _budgets(_fields(text)) if is_small(config) else _text(_fields(text), layers, distinct)
    notes += _changes("text", _fields(text), small)
    if text is config:
        return _rebuild(config, small), notes
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is None:
            continue
        if part is text:
            shrunk[name] = small
        elif is_small(config):
            shrunk[name] = _fields(part)
        else:
            shrunk[name] = _other_tower(_fields(part), small["hidden_size"])
            notes += _changes(name, _fields(part), shrunk[name])
    top = _fields(config)
    ids = _token_ids({**top, **_fields(text)}, small["vocab_size"])
    top |= {key: _map_ids(value, ids) for key, value in top.items() if _TOKEN_ID.search(key)}
    return _rebuild(config, top, shrunk), notes


def covering_layers(values: Mapping[str, Any]) -> int:
    """How many leading layers hold every combination of what the per-layer lists and thresholds say of a layer."""
    count = int(values["num_hidden_layers"])
    lists = [v for v in values.values() if isinstance(v, list) and len(v) == count]
    chosen = [v for k, v in values.items() if "layer" in k and isinstance(v, list) and len(v) != count and v]
    firsts = [v for k, v in values.items() if k.startswith("first_k") and isinstance(v, int)]
    periods = [v for k, v in values.items() if k.endswith(("_period", "_interval", "_freq")) and _is_count(v)]
    described = []
    for layer in range(count):
        # Lists of layer numbers count from 0 or from 1; the prefix holds the numbered layer either way.
        numbers = [n in ids for ids in chosen for n in (layer, layer + 1)]
        described.append((*(str(v[layer]) for v in lists), *numbers, *(layer < first for first in firsts)))
    needed = max(described.index(kind) for kind in set(described)) + 1
    return int(min(max(needed, 2, *periods), count, MAX_LAYERS))


def _text(values: Mapping[str, Any], layers: int, distinct: bool) -> dict[str, Any]:
    count = int(values["num_hidden_layers"])
    small = _budgets(values)
    for key, value in values.items():
        if key == "num_hidden_layers":
            small[key] = layers
        elif isinstance(value, list) and len(value) == count:
            small[key] = value[:layers]
        elif isinstance(value, list) and "layer" in key:
            small[key] = [v for v in value if isinstance(v, int) and v <= layers] or value
        elif not _is_count(value):
            continue
        elif key == "vocab_size":
            small[key] = min(value, VOCABULARY)
        elif "vocab_size" in key:
            small[key] = min(value, 500)
        elif re.search(r"divisible|parts|shards", key):
            small[key] = min(value, 8)
        elif "position" in key:
            small[key] = min(value, POSITIONS)
        elif _EXPERTS.search(key):
            small[key] = min(value, EXPERTS)
        elif _EXPERTS_PER_TOKEN.search(key):
            small[key] = min(value, 2)
        elif _GROUPS.search(key):
            small[key] = value if value == 1 else 4
        elif _GROUPS_KEPT.search(key):
            small[key] = min(value, 2)
    small |= _heads(values) | _sizes(values, distinct)
    ids = _token_ids(values, small["vocab_size"])
    small |= {key: _map_ids(value, ids) for key, value in values.items() if _TOKEN_ID.search(key)}
    return _scale_sections(values, small)


def _budgets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with budgets that bite on a short prompt, and enough index heads that scores do not tie."""
    small = copy.deepcopy(dict(values))
    for key, value in values.items():
        if not _is_count(value):
            continue
        if _BUDGET.search(key):
            small[key] = min(value, BUDGET)
        elif _POOL.search(key) and value > 2 * POOL:
            small[key] = POOL
        elif _INDEX.search(key) and _HEADS.search(key) and "kv" not in key:
            small[key] = INDEX_HEADS
    return small


def _heads(values: Mapping[str, Any]) -> dict[str, Any]:
    """Few heads, in the original ratio (at most 4) among those whose names begin alike."""
    groups: dict[str, dict[str, int]] = {}
    for key, value in values.items():
        if _HEADS.search(key) and _is_count(value) and not _INDEX.search(key):
            groups.setdefault(re.split(r"num_|n_heads|heads", key)[0], {})[key] = value
    small: dict[str, Any] = {}
    for prefix, heads in groups.items():
        least = min(heads.values())
        several = len(set(heads.values())) > 1
        base = min(least, 2 if several else 3 if prefix else 4)
        small |= {key: base * min(value // least, 4) for key, value in heads.items()}
    return small


def _sizes(values: Mapping[str, Any], distinct: bool) -> dict[str, Any]:
    """Multiples of SIZE_STEP in the order of the original sizes; sizes up to SIZE_STEP stay."""
    keys = [
        k for k, v in values.items() if _is_count(v) and v > SIZE_STEP and _SIZES.search(k) and not _NO_SIZE.search(k)
    ]
    ranked = sorted(keys, key=lambda k: (values[k], k))
    if distinct:
        return {key: SIZE_STEP * (i + 1) for i, key in enumerate(ranked)}
    levels = sorted({values[k] for k in keys})
    return {key: SIZE_STEP * 2 * (levels.index(values[key]) + 1) for key in ranked}


def _scale_sections(values: Mapping[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Rotary sections count channels of a head: they shrink with it."""
    old, new = values.get("head_dim") or 0, small.get("head_dim") or 0
    for holder in small.values():
        for key, section in list(holder.items()) if isinstance(holder, dict) and new != old else []:
            if str(key).endswith("section") and isinstance(section, list):
                total = sum(section) * new // old
                holder[key] = [total // len(section) + (i < total % len(section)) for i in range(len(section))]
    return small


def _other_tower(values: Mapping[str, Any], text_width: int) -> dict[str, Any]:
    """Another modality's part: as small as it goes, and giving vectors of the text model's width."""
    small = dict(values) | _sizes(values, distinct=False)
    for key, value in values.items():
        if key in ("depth", "num_hidden_layers", "num_layers") and _is_count(value):
            small[key] = 1
        elif _HEADS.search(key) and _is_count(value):
            small[key] = min(value, 2)
        elif isinstance(value, list) and re.search(r"index(es)?$|layers", key):
            small[key] = []
    if "out_hidden_size" in small:
        small["out_hidden_size"] = text_width
    return small


def _token_ids(values: Mapping[str, Any], vocabulary: int) -> dict[int, int]:
    """Special token ids beyond the vocabulary -> ids inside it, distinct ones staying distinct."""
    found: list[int] = []
    for key, value in values.items():
        if _TOKEN_ID.search(key):
            found += [i for i in (value if isinstance(value, list) else [value]) if _is_count(i)]
    beyond = sorted({i for i in found if i >= vocabulary})
    return {token: vocabulary - len(beyond) + i for i, token in enumerate(beyond)}


def _map_ids(value: Any, ids: Mapping[int, int]) -> Any:
    if isinstance(value, list):
        return [ids.get(v, v) for v in value]
    return ids.get(value, value) if _is_count(value) else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fields(config: Any) -> dict[str, Any]:
    """The values that the config class declares; keys of a config.json that it does not know are left behind."""
    parts = set(getattr(config, "sub_configs", {}))
    # Classes of transformers are dataclasses; a repo's own class may name its keys in __init__ only.
    names = {f.name for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set()
    names |= set(inspect.signature(type(config).__init__).parameters) - {"self", "args", "kwargs"}
    values = {n: copy.deepcopy(getattr(config, n)) for n in sorted(names) if n not in parts and hasattr(config, n)}
    return {n: v for n, v in values.items() if not n.startswith("_")}


def _rebuild(config: Any, values: Mapping[str, Any], parts: Mapping[str, dict[str, Any]] | None = None) -> Any:
    try:
        return type(config)(**values, **{n: dict(p) for n, p in (parts or {}).items()})
    except Exception as error:  # the config classes raise whatever their validation raises
        lines = str(error).strip().splitlines()
        raise Day0Error(
            f"{type(config).__name__} refuses the shrunk config: {lines[0] if lines else type(error).__name__}",
            hint="decompose goes on without behaviour",
        ) from error


def _changes(part: str, values: Mapping[str, Any], small: Mapping[str, Any]) -> list[str]:
    return [
        f"{part}: {key} {_short(value)} -> {_short(small[key])}" for key, value in values.items() if small[key] != value
    ]


def _short(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 4 else str(value)
