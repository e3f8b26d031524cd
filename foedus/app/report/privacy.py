"""The privacy section of a report, and the settings that a report must not show."""

from collections.abc import Mapping
from html import escape

import numpy as np

from foedus.app.report import sites, words
from foedus.app.report.words import number
from foedus.base.files import Json
from foedus.privacy.ledger import NOT_TOLD, SIMULATED, TIGHT
from foedus.runtime.run import Run

NO_SEED = (
    "The seed of this run is not shown: the noise was drawn from it, so that whoever knows it can run two guesses of "
    "the data and see which of them gives this model."
)

EXCESS = (
    "The verdict follows from the excess: the mean over all rows of a site of loss minus cap on the rows that the cap "
    "is about, and 0 on the others. It is at most 0 where the cap is kept; the noise is its standard deviation. The "
    "value is the mean loss on the cap's own rows, whose number is measured with noise as well."
)


def total_epsilon(run: Run) -> float | None:
    """Return the total ε of the site with the most releases, by the tightest composition; None without a guarantee."""
    book = getattr(run, "ledger", None)
    if book is None or not getattr(book, "sound", False) or not len(book.releases):
        return None
    return float(book.total(int(np.argmax(book.releases)), TIGHT))


def noise_from_seed(run: Run) -> bool:
    """Whether the noise of a private run was drawn from its seed."""
    book = getattr(run, "ledger", None)
    return book is not None and bool(getattr(book, "simulated", False))


def ledger(run: Run) -> str:
    """Return the privacy section: a sentence, the ε of each site and the whole ledger; empty without a ledger."""
    book = getattr(run, "ledger", None)
    if book is None:
        return ""
    summary = book.summary().splitlines()[0].removeprefix("privacy: ")
    text = f"<p>{escape(summary[:1].upper() + summary[1:])}.</p>"
    text += f"<p><b>{escape(SIMULATED)}.</b></p>" if noise_from_seed(run) else ""
    if total_epsilon(run) is not None and len(book.names) <= sites.MOST:
        totals = [float(book.total(i, TIGHT)) for i in range(len(book.names))]
        kind = "ε in all, simulated" if noise_from_seed(run) else "ε in all"
        text += sites.bars(
            ("Site", "Spent", kind, "Releases", "Examples"),
            [
                (name, total, (number(int(releases)), number(int(count)) if count >= 0 else NOT_TOLD))
                for name, total, releases, count in zip(book.names, totals, book.releases, book.counts, strict=True)
            ],
        )
    return f'{text}<details><summary>The whole ledger</summary><pre class="ledger">{escape(str(book))}</pre></details>'


def caps(run: Run) -> str:
    """Return the caps as they were measured under noise: sentences and a table; empty where they were not."""
    certificate = run.certificate.private
    if certificate is None:
        return ""
    sentences = "".join(f"<p>{escape(text)}</p>" for text in words.caps_under_noise(run))
    return f'{sentences}{sites.noisy_table(certificate)}<p class="note">{escape(EXCESS)}</p>'


def public_settings(run: Run) -> Json:
    """Return the settings that a page may show: without the seed if the noise of a private run was drawn from it."""
    return {k: v for k, v in run.settings.items() if k != "seed"} if noise_from_seed(run) else run.settings


def solve_arguments(algorithm: Json) -> tuple[Json, Json | None]:
    """Split the settings of a private algorithm into the arguments of `solve`: the plain method, and privacy=."""
    noise = algorithm.get("noise")
    if not isinstance(noise, Mapping) or "sampler" not in noise:
        return algorithm, None
    # version 0.1 kept the settings of a private form's plain algorithm under "method"
    plain = algorithm.get("plain") or algorithm.get("method") or {k: v for k, v in algorithm.items() if k != "noise"}
    if noise.get("total") is None:
        return plain, {k: v for k, v in noise.items() if k != "total"}
    epsilon, delta = noise["total"]
    clipping = {k: noise[k] for k in ("clip", "rows", "neighbours", "sampler")}
    if "least_rows" in noise:  # in shares; the call needs secure=True beside it
        shares = {k: noise[k] for k in ("tolerate", "least_rows")}
        return plain, {"name": "Central", "epsilon": epsilon, "delta": delta, **clipping, **shares}
    return plain, {"name": "Local", "epsilon": epsilon, "delta": delta, **clipping}
