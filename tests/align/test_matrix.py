"""The state matrix: it holds for every family, and any feature that forgets a part of the state breaks it."""

import random

import pytest
import torch

from day0.align.matrix import AXES, BIT_EXACT, PLAIN, all_cells, check_matrix, few_cells
from day0.demo import model_path
from day0.engine import graphs
from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.repo import ModelRepo
from tests.align.packages import package_of

FAMILIES = ["glm5_next", "kimi_linear", "qwen3_next", "qwen4_exp"]


@pytest.fixture(scope="module")
def packages(tiny_repo, tmp_path_factory):
    """packages(family): in float32 and in float64."""

    def make(family):
        repo = ModelRepo.open(model_path() if family == "demo" else tiny_repo(family))
        folder = tmp_path_factory.mktemp(family)
        return [package_of(repo, folder / str(dtype), dtype=dtype) for dtype in (torch.float32, torch.float64)]

    return make


def prompts(package, seed=1):
    numbers = random.Random(seed)
    vocabulary = min(package.layout().vocab_size, 200)
    return {name: [numbers.randrange(3, vocabulary) for _ in range(n)] for name, n in (("short", 5), ("long", 140))}


def run(packages, family, cells):
    package, exact = packages(family)
    return list(check_matrix(package, exact, prompts(package), cells))


def test_any_two_values_of_two_axes_meet_in_one_of_the_few_cells():
    cells = few_cells()
    for one in AXES:
        for other in AXES:
            if one < other:
                met = {(cell[one], cell[other]) for cell in cells}
                assert met == {(a, b) for a in AXES[one] for b in AXES[other]}
    assert len(cells) < 26 and len(all_cells()) == 432


@pytest.mark.parametrize("family", FAMILIES)
def test_features_meet_without_a_trace(packages, family):
    found = run(packages, family, few_cells())
    assert [(c.name, c.detail) for c in found if c.verdict != "holds"] == []
    assert all(c.bit_exact for c in found if BIT_EXACT.items() <= c.cell.items())
    assert sum(c.bit_exact is not None for c in found) >= 9


@pytest.mark.verify
@pytest.mark.parametrize("family", [*FAMILIES, "demo"])
def test_all_cells(packages, family):
    found = run(packages, family, all_cells())
    assert [(c.name, c.detail) for c in found if c.verdict != "holds"] == []


def forget_to_restore(monkeypatch):
    monkeypatch.setattr(Store, "restore_state", lambda self, place, saved: self.drop_state(saved))


def leave_out_a_component(monkeypatch):
    copy = Store.copy_state

    def all_but_the_window(self, source, target):
        window = next(c.name for c in self.layout.components if c.name.endswith("window"))
        before = self.memory[window][target].clone()
        copy(self, source, target)
        self.memory[window][target] = before

    monkeypatch.setattr(Store, "copy_state", all_but_the_window)


def share_the_page_that_is_written(monkeypatch):
    def same_page(self, source):
        return source

    monkeypatch.setattr(Store, "_own_page", same_page)


def pad_into_a_page_in_use(monkeypatch):
    monkeypatch.setattr(graphs, "NULL_PAGE", 1)


def pad_into_a_slot_in_use(monkeypatch):
    monkeypatch.setattr(graphs, "NULL_SLOT", 1)


def accept_one_too_many(monkeypatch):
    moved = Engine._moved

    def one_more(self, sequence, end, phase):
        moved(self, sequence, end - (phase == "verify" and end - sequence.place.length > 2), phase)

    monkeypatch.setattr(Engine, "_moved", one_more)


WRONG = {
    forget_to_restore: {"drafts": "always"},
    leave_out_a_component: {"prefix": "warm"},
    share_the_page_that_is_written: {"prefix": "warm", "company": "packed"},
    pad_into_a_page_in_use: {"steps": "graph", "drafts": "always"},
    pad_into_a_slot_in_use: {"steps": "graph", "drafts": "always"},
    accept_one_too_many: {"drafts": "always"},
}


@pytest.mark.parametrize("fault", WRONG, ids=lambda f: f.__name__)
def test_a_fault_is_seen_where_its_features_meet(packages, monkeypatch, fault):
    fault(monkeypatch)
    cell = PLAIN | {"length": "long"} | WRONG[fault]
    found = run(packages, "kimi_linear", [cell])
    assert [c.verdict for c in found] == ["does not hold"]
