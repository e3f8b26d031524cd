"""What would leave a site in one file of a run by courier: in plain words, and as a page for who lets it go."""

import itertools
from collections.abc import Iterator

import numpy as np
from markupsafe import Markup

from foedus.app.report import html, words
from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, piece, table
from foedus.base.quantities import count, number, size
from foedus.federation import packing
from foedus.federation.courier.file import CourierFile, arrays_of
from foedus.federation.courier.keys import signer_of
from foedus.federation.courier.site import NOT_FIGURES, Leaving, Preview

SHOWN = 8  # numbers of an array in the words; the page shows more
ON_PAGE = 200
SAYS = {
    "columns": "the names of the columns and of the values of label and group, and what each column holds",
    "cohort": "that it has noted the columns of all sites",
    "rows": "how many rows it has",
    "sums": "sums of columns, from which scales and lists of words are made",
    "squares": "sums of squared deviations of columns",
    "prepare": "that its table is prepared",
    "hello": "the number of its columns, and its versions",
    "join": "that it takes part",
    "keys": "a new public key for masks",
    "roster": "that it has checked the keys of all sites",
    "round": "its part of a round of the algorithm",
    "reveal": "shares that take the masks off the sum over all sites, and off nothing else",
    "total": "that it has added the sum up itself, and found the same",
    "measure": "its part of the certificate at the model",
    "products": "products of its second derivatives with vectors, for the estimate of the gap",
    "errors": "sums over rows, from which standard errors are made",
    "evaluate": "sums and histograms over its held-out rows",
    "rate": "how many held-out rows a threshold gets wrong",
}
AHEAD = "A question ({ask}) was asked before this site has told its columns, and comes again when they are known."
IN_FULL = "Stated in full"  # how the line of a statement begins that is for the page alone
OF_THE_FILE = ("run", "site", "ask")  # parts of a message's header that the file has text


def title_of(preview: Preview) -> str:
    """Return which file this is about."""
    one = preview.question
    return f"Exchange {one.exchange} of run {one.run}, at {one.to}"


def figures_in(header: dict, name: str = "") -> Iterator[tuple[str, str]]:
    """Return what the header of an answer tells, each with its name; not the words of the protocol."""
    for key, value in header.items():
        path = f"{name}.{key}" if name else str(key)
        if value is None or value == [] or (not name and key in NOT_FIGURES):
            continue
        if isinstance(value, dict):
            yield from figures_in(value, path)
        elif isinstance(value, list | tuple):
            yield path, ", ".join(map(_text, value))
        else:
            yield path, _text(value)


def _text(value: object) -> str:
    return _figure(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _figure(value: float) -> str:
    """A number as it leaves, to six digits."""
    return number(value) if isinstance(value, int) else f"{value:.6g}".replace("-", "−")


def how(one: Leaving) -> str:
    """Return how an answer leaves: exact or with noise, alone or in a sum."""
    if not one.count:
        return "no figure of the data"
    with_noise = "with noise" if one.releases else "exact" if one.exact else "not about the rows"
    return f"{with_noise}, under masks: only the sum over all sites is seen" if one.is_masked else with_noise


def _numbers(array: np.ndarray, most: int) -> str:
    flat = np.ravel(array)
    first = ", ".join(_figure(float(value)) for value in itertools.islice(flat, most))
    return first + (f", and {number(flat.size - most)} more" if flat.size > most else "")


def _shape(array: np.ndarray) -> str:
    return " × ".join(map(str, array.shape)) or "1"


def lines(preview: Preview) -> list[str]:
    """Return what would leave, line by line."""
    text = [line for line in preview.statement if not line.startswith(IN_FULL)]
    text += [f"{title_of(preview)}: {size(preview.size)} would leave."]
    for one in preview.leaving:
        rows = f" about {count(one.rows, 'row')}" if one.rows is not None and one.count else ""
        text.append(f"- {one.ask}: {SAYS.get(one.ask, 'an answer')}; {count(one.count, 'number')}{rows}, {how(one)}.")
        text += [f"    {name}: {value}" for name, value in figures_in(one.header)]
        text += [
            f"    {name} ({_shape(array)}): {_numbers(array, SHOWN)}"
            for name, array in zip(one.names, one.arrays, strict=True)
        ]
        text += [f"    {release.what}: {release.kind} noise" for release in one.releases]
    if any(one.releases for one in preview.leaving):
        text.append("Noise is drawn anew when the file is written, so the noisy numbers will be others.")
    text += [f"It refuses {refusal}." for refusal in preview.refusals]
    text += [f"It cannot answer: {failure}." for failure in preview.failures]
    text += [f"Its own log, which stays here, says: {reason}" for reason in preview.reasons]
    text += [AHEAD.format(ask=ask) for ask in preview.ahead]
    return [*text, privacy(preview)]


def privacy(preview: Preview) -> str:
    """Return the sentence on ε: so far, with this file, and of this run alone."""
    before, after, run = preview.epsilon
    exact = any(one.exact and one.count for one in preview.leaving)
    beside = "; the exact numbers of this file have no noise, and no epsilon bounds what they tell" if exact else ""
    return (
        f"Privacy: epsilon {before:.4g} before this file, {after:.4g} with it ({run:.4g} by this run), "
        f"at delta {preview.delta:g}, for replacing one row{beside}."
    )


def page(preview: Preview) -> str:
    """Return the page for the person who lets the file go."""
    before, after, run = preview.epsilon
    numbers = sum(one.count for one in preview.leaving)
    sentences = tuple(f"{one.removesuffix('.')}." for one in (*preview.refusals, *preview.failures, *preview.reasons))
    verdict = (
        words.Verdict("bad", "This site does not answer all that is asked", sentences)
        if sentences
        else words.Verdict("open", f"{count(numbers, 'number')} would leave", ("Nothing of this file has left yet.",))
    )
    rows = [one.rows for one in preview.leaving if one.rows is not None and one.count]
    tiles = [
        ("Numbers", number(numbers), f"in {count(len(preview.leaving), 'answer')}"),
        ("File", size(preview.size), "compressed and signed"),
        ("Rows behind", number(min(rows)) if rows else "–", "the fewest behind an answer" if rows else "none"),
        ("Privacy", f"ε = {after:.3g}", f"{before:.3g} before; {run:.3g} by this run; δ = {preview.delta:g}"),
    ]
    heads = [Column("Answer", ""), *columns("Numbers", "Rows"), *columns("How it leaves", "What it says", kind="t")]
    overview = table(
        heads,
        [
            Line(
                one.ask,
                [
                    Cell(number(one.count)),
                    Cell("–" if one.rows is None or not one.count else number(one.rows)),
                    Cell(how(one)),
                    Cell(SAYS.get(one.ask, "an answer")),
                ],
            )
            for one in preview.leaving
        ],
        "",
    )
    remarks = [privacy(preview), *(AHEAD.format(ask=ask) for ask in preview.ahead)]
    parts = [("leaving", "What would leave", overview + paragraphs(remarks))]
    parts += [
        (f"answer-{i}", f"The answer to {one.ask}", _numbers_of(one))
        for i, one in enumerate(preview.leaving, start=1)
        if one.arrays or [*figures_in(one.header)]
    ]
    if preview.statement:
        parts.append(("asked", "What the run asks", paragraphs(preview.statement)))
    return html.assemble(title_of(preview), verdict, kicker=f"site {preview.question.to}", tiles=tiles, parts=parts)


def _numbers_of(one: Leaving) -> Markup:
    rows = [Line(name, [Cell("1"), Cell(value)]) for name, value in figures_in(one.header)]
    rows += [
        Line(name, [Cell(_shape(array)), Cell(_numbers(array, ON_PAGE))])
        for name, array in zip(one.names, one.arrays, strict=True)
    ]
    note = "Noise is drawn anew when the file is written." if one.releases else ""
    heads = [Column("Name", ""), *columns("Shape", "Values", kind="t")]
    return table(heads, rows, "") + piece("note", note)


def file_lines(one: CourierFile) -> list[str]:
    """Return what is in a file, whoever has sent it, for `foedus courier show`."""
    text = [
        f"{one.kind} of exchange {one.exchange}, run {one.run}, from {one.sender} to {one.to}.",
        f"Size: {size(len(one.content))}.",
        f"Plan: {one.plan}.",
        f"Signed by {signer_of(one)}.",
    ]
    text += [f"Answers the file {one.answers}."] if one.answers else []
    text += [f"It says: {one.more['words']}."] if "words" in one.more else []
    for message in one.messages:
        header, payload = packing.unseal(message.content)
        text.append(f"- {header.get('ask')}: {size(len(payload))} in arrays.")
        text += [f"    {name}: {value}" for name, value in figures_in(header) if name not in OF_THE_FILE]
        for array, values in zip(message.arrays, arrays_of(message), strict=True):
            numbers = _numbers(values, SHOWN) if array["dtype"] != "|u1" else "under masks, or bytes of the protocol"
            text.append(f"    {array['name']} ({_shape(values)}, {array['dtype']}): {numbers}")
    return text
