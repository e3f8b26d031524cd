"""Plans that state something else than an honest coordinator would."""

from types import SimpleNamespace

from foedus.app.experiment.plan import Plan


def holding_out(monkeypatch, change) -> None:
    """Let every plan state other rows to hold out: `change` takes the honest statement."""
    honest = Plan.holdout.fget
    assert honest is not None

    def holdout(plan):
        one = honest(plan)
        stated = change(one.to_json())
        return SimpleNamespace(to_json=lambda: stated, rates=one.rates)

    monkeypatch.setattr(Plan, "holdout", property(holdout))
