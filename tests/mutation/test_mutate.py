"""The mutator: what it changes, what it leaves, and that a mutant is a module that differs in just that."""

import textwrap

import pytest

from tests.mutation.mutate import Mutation, compile_mutant, mutations, sample


def changes(source):
    """(before, after) of every mutation."""
    return {(m.before, m.after) for m in mutations("file.py", textwrap.dedent(source))}


def afters(statement):
    """What becomes of one statement in a function of a, b, x and y."""
    return {m.after for m in mutations("file.py", f"def f(a, b, x, y):\n    {statement}\n")}


@pytest.mark.parametrize(
    "statement,expected",
    [
        ("return x + y", {"return x", "return x - y"}),
        ("return x * y", {"return x", "return x / y"}),
        ("return x @ y", {"return y @ x"}),
        ("return -x", {"return x"}),
        ("return not x", {"return x"}),
        ("return x < y", {"return x <= y"}),
        ("return a < x < y", {"return a <= x < y", "return a < x <= y"}),
        ("return x is None", {"return x is not None"}),
        ("return x and y", {"return x or y", "return x", "return y"}),
        ("return x if a else y", {"return x", "return y"}),
        ("return 3", {"return 4", "return 2"}),
        ("return -1", {"return 0", "return -2"}),
        ("return 0.5", {"return 1.0", "return 0.0"}),
        ("return 0.0", {"return 1.0"}),
        ("return True", {"return False"}),
        ("return x[a:b]", {"return x[a + 1:b]", "return x[a - 1:b]", "return x[a:b + 1]", "return x[a:b - 1]"}),
        ("return range(a)", {"return range(a + 1)", "return range(a - 1)", "return a"}),
        ("return upcast(x)", {"return x"}),
        ("return x.float()", {"return x"}),
        ("return x.view(a, b)", {"return x", "return x.view(b, a)"}),
        ("return x.sum(keepdim=a)", {"return x", "return x.sum()", "return x.mean(keepdim=a)"}),
        ("return torch.exp(x)", {"return x"}),
        ("return torch.f(a, device=b + 1)", {"return a"}),
        ("return zip(x, strict=True)", {"return x"}),
        ("return [a for x in y if x]", {"return [a for x in y]"}),
        ("x = x + y", {"pass", "x = x - y"}),
        ("z = x", set()),
        ("x[a] = y", {"pass"}),
        ("x += y", {"pass", "x -= y"}),
        ("x.copy_(y)", {"pass", "x"}),
        ("return 'text' + x", set()),
        ("return f'{x + 1}'", set()),
        ("raise ValueError(x + 1)", set()),
        ("assert x > 1", set()),
        ("z: int = x + y", {"z: int = x", "z: int = x - y"}),
        ("return lambda z: z + x", {"return lambda z: z", "return lambda z: z - x"}),
    ],
)
def test_what_becomes_of_a_statement(statement, expected):
    assert afters(statement) == expected


def test_a_compound_statement_is_told_by_its_head_and_its_body_on_its_own():
    found = changes(
        """
        def f(x):
            if x > 1:
                x = x + 1
            for i in x:
                continue
        """
    )
    assert {("if x > 1", f"if {after}") for after in ("True", "False", "x >= 1", "x > 2", "x > 0")} <= found
    assert ("x = x + 1", "pass") in found and ("continue", "pass") in found


def test_what_no_computation_reads_is_left():
    assert not changes(
        '''
        """Docstring of 1."""
        import a

        class A(B):
            eps: float = 1e-6

            @classmethod
            def alternatives(cls) -> dict[str, 1 + 1]:
                return {"eps": (1e-5, 1e-6)}

            def f(self, x: Tensor | None) -> Tensor:
                "Another of 1."
                return self.g
        '''
    )


def test_names_are_qualified_and_repetitions_counted():
    source = "class A:\n    def f(self, x):\n        x = x + 1\n        x = x + 1\n        return x\n"
    found = [m for m in mutations("file.py", source) if m.after == "x = x - 1"]
    assert found == [
        Mutation("file.py", "A.f", "x = x + 1", "x = x - 1", occurrence=1),
        Mutation("file.py", "A.f", "x = x + 1", "x = x - 1", occurrence=2),
    ]


def test_no_two_mutations_are_the_same():
    source = "def f(x, y):\n    x = x + y\n    x = x + y\n    return x.sum(-1) + x.sum(-1)\n"
    found = mutations("file.py", source)
    assert len(set(found)) == len(found)


def run(source, mutation, *args):
    scope = {}
    exec(compile_mutant(mutation, source), scope)
    return scope["f"](*args)


def test_a_mutant_differs_in_that_one_change():
    source = "def f(x, y):\n    x = x + y\n    x = x + y\n    return x\n"
    results = {(m.after, m.occurrence): run(source, m, 10, 3) for m in mutations("file.py", source)}
    assert results == {("pass", 1): 13, ("pass", 2): 13, ("x = x - y", 1): 10, ("x = x - y", 2): 10}


def test_every_mutation_compiles():
    source = textwrap.dedent(
        """
        TABLE = {"a": 1}

        def f(x, y=2, *rest, **named):
            out = [i * 2 for i in range(1, x) if i > 1] or [y]
            while x < 3 and not y:
                x += 1
            return out[1:x] if y is None else -out[0] ** 2
        """
    )
    found = mutations("file.py", source)
    assert len(found) > 30
    for mutation in found:
        compile_mutant(mutation, source)


def test_an_unknown_mutation_is_an_error():
    with pytest.raises(StopIteration):
        compile_mutant(Mutation("file.py", "f", "x", "y"), "def f(x):\n    return x\n")


def test_a_sample_is_seeded_and_stays_when_others_come():
    many = mutations("file.py", "def f(x):\n" + "".join(f"    x = x + {i}\n" for i in range(50)) + "    return x\n")
    drawn = sample(many, 20, seed=1)
    assert drawn == sample(many, 20, seed=1) and len(drawn) == 20
    assert drawn != sample(many, 20, seed=2)
    assert sample(many[:40], 99, seed=1) == [m for m in sample(many, 99999, seed=1) if m in many[:40]]
