"""The examples run, are short, and there is one for every estimator."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
# what a robust estimator's example prints is its worst case; the others' is a certificate
SLOW = {"robust_classifier", "robust_regressor"}
ENDS = dict.fromkeys(SLOW, "worst case:") | {"pooled_regressions": "pooled [-1.5399 -0.0265 -0.1322], 6 rounds"}


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[pytest.mark.slow] if p.stem in SLOW else [], id=p.stem) for p in EXAMPLES]
)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]):
    runpy.run_path(str(path), run_name="__main__")
    assert ENDS.get(path.stem, "certified (") in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40


def test_every_estimator_has_an_example():
    from foedus.app import estimators

    shown = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES)
    for name in estimators.__all__:
        assert f"fd.{name}(" in shown
