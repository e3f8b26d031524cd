"""The rooms of the package: no two of them use each other, and docs/design.md draws them as they are."""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "foedus"
DESIGN = PACKAGE.parent / "docs" / "design.md"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """A folder of the package; '' is the package's own face."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports, wherever in the file it does so."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        used: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
                used |= {inner if inner in known else outer for inner, outer in names}
        graph[name] = {m for m in used if m in known and m != name}
    return graph


@cache
def rooms() -> dict[str, set[str]]:
    """The rooms that each room imports; the package's own face, which re-exports, is left out."""
    graph: dict[str, set[str]] = {}
    for module, used in imports().items():
        own = room_of(module)
        if own:
            graph.setdefault(own, set()).update({room_of(m) for m in used} - {own, ""})
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def test_no_two_modules_import_each_other():
    for module in imports():
        assert module not in reachable(imports(), module), module


def test_a_room_imports_only_rooms_above_it():
    """In the order of the table, which begins with what everybody uses."""
    order = [*drawn()]
    for place, room in enumerate(order):
        assert rooms()[room] <= {*order[:place]}, room


def test_there_are_at_most_fourteen_rooms():
    assert len(rooms()) <= 14


def test_only_what_users_call_names_algorithms():
    assert [room for room, used in rooms().items() if "algorithms" in used] == ["app"]


def drawn() -> dict[str, set[str]]:
    """The map of docs/design.md: a row for each room, with the rooms that it uses."""
    text = DESIGN.read_text()
    table = text[text.index("| room | what lives there | uses |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name.strip("`"): set(re.findall(r"`(\w+)`", uses)) for name, _, uses in rows}


def test_the_map_in_the_documentation_is_true():
    assert drawn() == rooms()


def test_every_folder_says_what_lives_there():
    for path in PACKAGE.rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert doc.split("\n")[0].endswith("."), path
        assert len(doc) > 40, path
