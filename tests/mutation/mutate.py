"""Seeded faults: every small change of a Python file that its tests should notice."""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
COMPARISON = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_PAIRS = [("min", "max"), ("any", "all"), ("sum", "mean"), ("floor", "ceil"), ("sin", "cos"), ("zeros", "ones")]
_PAIRS += [("argmin", "argmax"), ("sigmoid", "tanh"), ("zeros_like", "ones_like")]
FUNCTION = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}

# What decompose tries when a proof nearly holds: candidates, which no computation reads.
UNREAD_FUNCTIONS = {"alternatives"}
# Parts of a node that compute nothing, and the statements inside a compound one, which are visited on their own.
SKIPPED_FIELDS = {"body", "orelse", "handlers", "finalbody", "annotation", "returns", "decorator_list", "ctx", "op"}
# Messages, type narrowing, names of modules, declarations of fields.
SKIPPED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.ClassDef)
# Where a tensor stands shows only on a machine with a GPU; `strict` guards against a wrong caller, like an assertion.
SKIPPED_KEYWORDS = {"device", "strict"}


@dataclass(frozen=True)
class Mutation:
    """One change, told by the statement it is in (of a compound one the head), so that it survives other edits."""

    file: str
    function: str  # qualified name; "" for module level
    before: str
    after: str
    occurrence: int = 1  # among equal changes of equal statements in that function

    def __str__(self) -> str:
        again = f" ({self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.file} {self.function or '<module>'}{again}: {self.before}  ->  {self.after}"


def mutations(file: str, source: str) -> list[Mutation]:
    """All mutations of a source text, in its order."""
    return [mutation for mutation, _ in _walk(file, source)]


def compile_mutant(mutation: Mutation, source: str) -> CodeType:
    """The compiled module with that one change. Raises StopIteration when the source has no such mutation."""
    return next(
        compile(ast.fix_missing_locations(copy.deepcopy(tree)), mutation.file, "exec")
        for found, tree in _walk(mutation.file, source)
        if found == mutation
    )


def sample(found: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """`count` of them by the order of a seeded hash: an edit elsewhere does not change who is drawn."""

    def drawn(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation}".encode()).digest()

    return sorted(found, key=drawn)[:count]


def _walk(file: str, source: str) -> Iterator[tuple[Mutation, ast.Module]]:
    """Each mutation with the tree that holds it, valid until the next one is asked for."""
    tree = ast.parse(source)
    seen: Counter[tuple[str, str, str]] = Counter()
    for function, owner, position in _statements(tree, "", set()):
        statement = owner[position]
        before = _text(statement)
        bound = _bound_before(tree, statement)
        told = set()
        for _ in _changes(owner, position, bound):
            after = _text(owner[position])
            if after == before or after in told or _assigns_itself(owner[position]):
                continue
            told.add(after)
            key = (function, before, after)
            yield Mutation(file, *key, occurrence=seen[key] + 1), tree
        for after in told:
            seen[function, before, after] += 1


def _text(statement: ast.stmt) -> str:
    head = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers"):
        if isinstance(getattr(head, field, None), list):
            setattr(head, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(head).removesuffix("\n    pass").removesuffix(":")


def _assigns_itself(statement: ast.stmt) -> bool:
    """Whether it reads `x = x`: the same change as leaving the statement out."""
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == ast.unparse(statement.value)


def _statements(node: ast.AST, function: str, unread: set[str]) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """(qualified function, list that holds the statement, place in it) of every statement that computes."""
    for field in ("body", "orelse", "finalbody"):
        owner = getattr(node, field, None)
        if not isinstance(owner, list):
            continue
        for position, statement in enumerate(owner):
            inside = function
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                if statement.name in UNREAD_FUNCTIONS:
                    continue
                inside = f"{function}.{statement.name}".lstrip(".")
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            declaration = isinstance(node, ast.ClassDef) and not isinstance(statement, ast.FunctionDef)
            if not (docstring or declaration or isinstance(statement, SKIPPED)):
                yield inside, owner, position
            yield from _statements(statement, inside, unread)


def _bound_before(tree: ast.Module, statement: ast.stmt) -> set[str]:
    """Names that have a value when the statement is reached, as far as the order of lines tells."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.lineno <= statement.lineno:
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < statement.lineno:
            names.add(node.id)
    return names


def _changes(owner: list[ast.stmt], position: int, bound: set[str]) -> Iterator[None]:
    """Makes each change of a statement in place, stops, and takes it back."""
    statement = owner[position]
    for replacement in _of_statement(statement, bound):
        owner[position] = ast.copy_location(replacement, statement)
        yield
        owner[position] = statement
    yield from _expressions(statement)


def _of_statement(statement: ast.stmt, bound: set[str]) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.Assign):
        stored = {n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if stored <= bound:
            yield ast.Pass()
    elif isinstance(statement, ast.Expr | ast.Break | ast.Continue):
        yield ast.Pass()
    elif isinstance(statement, ast.AugAssign):
        yield ast.Pass()
        if type(statement.op) in BINARY:
            changed = copy.copy(statement)
            changed.op = BINARY[type(statement.op)]()
            yield changed
    elif isinstance(statement, ast.If):
        for value in (True, False):
            changed = copy.copy(statement)
            changed.test = ast.Constant(value)
            yield changed


def _expressions(node: ast.AST) -> Iterator[None]:
    """Changes every expression under a node in place, one at a time."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS and not isinstance(node, ast.IfExp | ast.Lambda):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.keyword) and child.arg in SKIPPED_KEYWORDS:
                continue
            for replacement in _of_expression(child, node, field):
                _put(node, field, index, replacement)
                yield
                _put(node, field, index, child)
            if not _is_constant(child):
                yield from _expressions(child)


def _put(node: ast.AST, field: str, index: int, child: ast.AST) -> None:
    value = getattr(node, field)
    if isinstance(value, list):
        value[index] = child
    else:
        setattr(node, field, child)


def _of_expression(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    match node:
        case _ if _is_constant(node):
            yield from _other_constants(ast.literal_eval(node))
        case ast.UnaryOp():
            yield node.operand
        case ast.BinOp(left, op, right) if not _is_text(left) and not _is_text(right):
            if isinstance(op, ast.MatMult):
                yield ast.BinOp(right, op, left)
            else:
                yield left
            if type(op) in BINARY and not _has_dict(left) and not _has_dict(right):
                yield ast.BinOp(left, BINARY[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:i], COMPARISON[type(op)](), *ops[i + 1 :]], comparators)
        case ast.IfExp(_, body, orelse):
            yield body
            yield orelse
        case ast.Call():
            yield from _other_calls(node)
        case ast.comprehension(target, iter, [_, *_], is_async):
            yield ast.comprehension(target, iter, [], is_async)
    bound = isinstance(parent, ast.Slice) and field != "step"
    counted = isinstance(parent, ast.Call) and field == "args" and _name(parent.func) == "range"
    if (bound or counted) and not _is_constant(node):
        for op in (ast.Add(), ast.Sub()):
            yield ast.BinOp(node, op, ast.Constant(1))


def _other_constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(2.0 * value if value else 1.0)
        if value:
            yield ast.Constant(0.0)


def _other_calls(node: ast.Call) -> Iterator[ast.expr]:
    function, args = node.func, node.args
    if isinstance(function, ast.Attribute) and not _is_module(function.value):
        yield function.value
    elif len(args) == 1 and not _is_fixed(args[0]):
        yield args[0]
    if len(args) >= 2 and not any(_is_fixed(a) for a in args[:2]):
        yield ast.Call(function, [args[1], args[0], *args[2:]], node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in SKIPPED_KEYWORDS:
            yield ast.Call(function, args, node.keywords[:i] + node.keywords[i + 1 :])
    other = FUNCTION.get(_name(function))
    if other and isinstance(function, ast.Attribute):
        yield ast.Call(ast.Attribute(function.value, other, ast.Load()), args, node.keywords)
    elif other:
        yield ast.Call(ast.Name(other, ast.Load()), args, node.keywords)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in {"torch", "torch.nn.functional", "math"}


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _is_fixed(node: ast.expr) -> bool:
    return _is_constant(node) or isinstance(node, ast.Starred | ast.JoinedStr)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _has_dict(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Dict | ast.DictComp) for part in ast.walk(node))
