"""Open a model repo lazily: config, tensor headers, tokenizer, and where its reference implementation comes from."""

from day0.repo.headers import TensorHeader
from day0.repo.model_repo import ModelRepo

__all__ = ["ModelRepo", "TensorHeader"]
