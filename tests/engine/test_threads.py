import torch

from day0.engine.threads import threads_for


def test_small_models_take_one_thread_and_others_are_left_alone(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        with threads_for(1000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with threads_for(10**9):
            assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with threads_for(1000):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
