"""What packages say of foedus agrees with pyproject.toml; make package builds them and tries them."""

import re
import tomllib
from pathlib import Path

import foedus as fd

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPE = (ROOT / "conda/recipe.yaml").read_text(encoding="utf-8")


def listed(head: str) -> list[str]:
    """The items below a head of the recipe, as pyproject.toml writes them."""
    found = re.search(rf"^ *{head}:(?: *#.*)?\n((?: +- .*\n)+)", RECIPE, re.MULTILINE)
    assert found, head
    return [re.sub(r" (?=[<>]=?)", "", line.strip().removeprefix("- ")) for line in found[1].splitlines()]


def test_the_conda_recipe_asks_for_what_the_project_asks_for():
    project = PROJECT["project"]
    assert listed("run") == [f"python{project['requires-python']}", *project["dependencies"]]
    extras = project["optional-dependencies"]
    assert listed("run_constraints") == sorted(extras["plot"] + extras["files"])
    assert listed("host")[1:] == ["pip", *PROJECT["build-system"]["requires"]]
    assert listed("entry_points") == [f"foedus = {project['scripts']['foedus']}"]
    assert f'\n  summary: "{project["description"]}"\n  license: {project["license"]}\n' in RECIPE


def test_all_packages_have_one_version():
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text(encoding="utf-8"))
    assert lab["project"]["version"] == fd.__version__
    assert f'\n  version: "{fd.__version__}"\n' in RECIPE


def test_packages_hold_every_file_that_is_no_module():
    kinds = PROJECT["tool"]["setuptools"]["package-data"]["foedus"]
    package = ROOT / "foedus"
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == {path for kind in kinds for path in package.glob(kind)}
