"""The rooms of the package: no two of them use each other, and docs/design.md draws them as they are."""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "foedus"
DESIGN = PACKAGE.parent / "docs" / "design.md"
LEAVES = {"errors", "engine", "pytrees", "settings", "files"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """A folder of the package, or a module beside the folders; '' is the package's own face."""
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


def test_no_two_rooms_import_each_other():
    for room in rooms():
        assert room not in reachable(rooms(), room), f"{room} reaches itself through {rooms()[room]}"


def test_no_two_modules_import_each_other():
    for module in imports():
        assert module not in reachable(imports(), module), module


def test_leaves_import_nothing_of_foedus_but_leaves():
    for leaf in LEAVES:
        assert rooms()[leaf] <= LEAVES, leaf


def test_numerics_knows_no_problem():
    assert rooms()["numerics"] <= LEAVES | {"regularizers"}


def test_an_algorithm_imports_no_runtime_and_a_runtime_no_algorithm():
    assert "runtime" not in reachable(rooms(), "algorithms")
    assert "algorithms" not in rooms()["runtime"]
    assert "algorithms" not in reachable(rooms(), "privacy")
    assert "algorithms" not in reachable(rooms(), "robust")


def drawn() -> dict[str, set[str]]:
    """The map of docs/design.md: a row for each room, with the rooms that it uses."""
    text = DESIGN.read_text()
    table = text[text.index("| room | what lives there | uses |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name.strip("`"): set(re.findall(r"`(\w+)`", uses)) for name, _, uses in rows}


def test_the_map_in_the_documentation_is_true():
    """Leaves are used everywhere and are not drawn as used."""
    graph = {room: used - LEAVES for room, used in rooms().items() if room not in LEAVES}
    picture = {room: used for room, used in drawn().items() if room not in LEAVES}
    assert picture.keys() == graph.keys()
    for room, used in graph.items():
        assert picture[room] == used, room


def test_every_folder_says_what_lives_there():
    for path in PACKAGE.rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert doc.split("\n")[0].endswith("."), path
        assert len(doc) > 40, path
