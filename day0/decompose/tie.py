"""Whether the checkpoint ties its two tables of the vocabulary, as its config says."""

from day0.kernels.registry import get_kind
from day0.language.program import Program
from day0.repo.model_repo import ModelRepo

TIE = "tie_word_embeddings"


def tie_fault(repo: ModelRepo, program: Program) -> tuple[str, bool]:
    """What the tensors say against the config's word that input and output tables are (not) one; "" when they agree.

    The second says whether it is certain: tensors on the hub are not compared.
    """
    said = repo.config.get(TIE, program.config.get(TIE))  # a wrapper may leave it to its text model's config
    tables = [name for name in _tables(program) if name in repo.tensors]
    if len(tables) != 2:
        return "", True
    tied = tables[0] == tables[1]
    if said is False and tied:
        return f"false, but the checkpoint holds {tables[0]} only", True
    if said is True and not tied:
        same = repo.same_numbers(*tables)
        differs = "which may differ" if same is None else "which differs"
        return ("", True) if same else (f"true, but {tables[1]} stands beside {tables[0]}, {differs}", same is not None)
    return "", True


def _tables(program: Program) -> list[str]:
    """The tensor of each weight outside the layers that has a row for each token of the vocabulary."""
    found = []
    for use in program.outer.values():
        for weight, spec in get_kind(use.kind).weights(use.attributes).items():
            source = use.weights[weight]
            if len(spec.shape) == 2 and spec.shape[0] == program.vocab_size and isinstance(source, str):
                found.append(source)
    return found
