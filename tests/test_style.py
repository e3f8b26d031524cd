"""How the code reads, measured: names that are bare participles, and places typed Any."""

import ast
from pathlib import Path

import foedus as fd
from foedus.algorithm import Algorithm

PACKAGE = Path(__file__).parents[1] / "foedus"
FILES = sorted(PACKAGE.rglob("*.py"))
# participles that do not end in -ed; "left" and "bound" are nouns and sides more often than not
IRREGULAR = {
    "found", "told", "held", "asked", "kept", "made", "given", "taken", "known", "seen", "heard", "said", "spoken",
    "chosen", "drawn", "sent", "met", "written", "done", "shown", "thrown", "grown", "lost", "meant", "paid", "built",
    "spent", "understood", "hidden", "broken", "driven", "stuck", "bent", "brought", "caught", "dealt",
}  # fmt: skip
NOT_PARTICIPLES = {"need", "seed", "feed", "speed", "bed", "red", "shed", "embed", "exceed", "proceed"}
PUBLIC = {"converged", "interrupted", "refused", "finished", "coupled", "stacked", "fixed"}  # names that users know


def is_participle(name: str) -> bool:
    name = name.strip("_")
    if "_" in name or name in NOT_PARTICIPLES | PUBLIC:
        return False
    return name in IRREGULAR or (len(name) > 4 and name.endswith("ed") and name.islower())


def bound_names(tree: ast.AST) -> list[str]:
    """The names that a file gives to functions, classes, parameters, variables and attributes."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            names += [node.name, *(a.arg for a in every if a is not None)]
        elif isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
    return names


def test_things_are_called_by_nouns():
    names = [name for path in FILES for name in bound_names(ast.parse(path.read_text()))]
    share = sum(map(is_participle, names)) / len(names)
    assert share < 0.01, f"{share:.2%} of the names are bare participles"


def test_few_places_are_typed_any():
    lines = sum(len(path.read_text().splitlines()) for path in FILES)
    places = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
    )
    assert 1000 * places / lines < 5, f"{1000 * places / lines:.1f} per 1,000 lines"


def test_the_protocol_has_at_most_twelve_members():
    members = [name for name in vars(Algorithm) if not name.startswith("_")]
    assert len(members) <= 12, members
    for name in members:
        assert vars(Algorithm)[name].__doc__, name
    source = (PACKAGE / "algorithm.py").read_text()
    assert "getattr" not in source.split("def __getattr__")[0]


def test_public_functions_and_classes_have_examples():
    without = []
    for name in fd.__all__:
        thing = getattr(fd, name)
        if isinstance(thing, type) and issubclass(thing, fd.FoedusError):
            continue
        if callable(thing) and ">>>" not in (thing.__doc__ or ""):
            without.append(name)
    assert not without, without
