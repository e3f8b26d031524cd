"""What a report says about the privacy of a run, and what it leaves out for its sake."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from foedus.privacy.ledger import NOT_TOLD, SIMULATED, TIGHT
from foedus.report import sites
from foedus.report.words import number
from foedus.run import Run

NO_SEED = (
    "The seed of this run is not shown: the noise was drawn from it, so that whoever knows it can run two guesses of "
    "the data and see which of them gives this model."
)


def spent(run: Run) -> float | None:
    """The total ε of the site that has released most, by the tightest composition; None without a guarantee."""
    found = getattr(run, "ledger", None)
    if found is None or not getattr(found, "sound", False) or not len(found.releases):
        return None
    return float(found.total(int(np.argmax(found.releases)), TIGHT))


def simulated(run: Run) -> bool:
    """Whether the noise of a private run was drawn from its seed."""
    found = getattr(run, "ledger", None)
    return found is not None and bool(getattr(found, "simulated", False))


def ledger(run: Run) -> str:
    """The privacy ledger, where there is one: a sentence, what each site has spent, and the whole of it."""
    found = getattr(run, "ledger", None)
    if found is None:
        return ""
    said = found.summary().splitlines()[0].removeprefix("privacy: ")
    text = f"<p>{escape(said[:1].upper() + said[1:])}.</p>"
    text += f"<p><b>{escape(SIMULATED)}.</b></p>" if simulated(run) else ""
    if spent(run) is not None and len(found.names) <= sites.MOST:
        totals = [float(found.total(i, TIGHT)) for i in range(len(found.names))]
        kind = "ε in all, simulated" if simulated(run) else "ε in all"
        text += sites.bars(
            ("Site", "Spent", kind, "Releases", "Examples"),
            [
                (name, total, (number(int(releases)), number(int(count)) if count >= 0 else NOT_TOLD))
                for name, total, releases, count in zip(found.names, totals, found.releases, found.counts, strict=True)
            ],
        )
    return f'{text}<details><summary>The whole ledger</summary><pre class="ledger">{escape(str(found))}</pre></details>'


def shown(run: Run) -> dict[str, Any]:
    """The settings as a page may show them: without the seed from which the noise of a private run was drawn."""
    return {k: v for k, v in run.settings.items() if k != "seed"} if simulated(run) else run.settings


def unmixed(algorithm: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The settings of a private algorithm as they are given to `solve`: those of the plain method, and privacy=."""
    noise = algorithm.get("noise")
    if not isinstance(noise, Mapping) or "sampler" not in noise:
        return algorithm, None
    plain = algorithm.get("method") or {k: v for k, v in algorithm.items() if k != "noise"}
    if noise.get("total") is None:
        return plain, {k: v for k, v in noise.items() if k != "total"}
    epsilon, delta = noise["total"]
    kept = {k: noise[k] for k in ("clip", "rows", "neighbours", "sampler")}
    return plain, {"name": "Local", "epsilon": epsilon, "delta": delta, **kept}
