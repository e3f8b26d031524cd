"""Tables that do not meet: what a site tells of its own, and what the server makes of what all sites tell.

A site tells the names of its columns, which of them hold words, and the values of its label and its group. That is
enough to see whether the sites mean the same, as `sites.gather` does where it has all tables at hand; no row is told,
and no sentence of the server's holds a value of a feature.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foedus.data.sites import Cohort, Roles, complete, features_of, groups_of, holds_words, in_order, labels_of
from foedus.data.tables import Table, missing_in, text_of
from foedus.errors import FoedusError, did_you_mean

EMPTY, NUMBERS, WORDS = "nothing", "numbers", "words"


@dataclass(frozen=True)
class Sketch:
    """What a site tells of its table before any sum is asked for."""

    features: tuple[str, ...]
    holds: tuple[str, ...]  # of each feature: "numbers", "words", or "nothing" where all its values are missing
    labels: tuple[str, ...]  # the values of the label; none in a regression
    groups: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> "Sketch":
        return Sketch(**{name: tuple(map(str, told[name])) for name in ("features", "holds", "labels", "groups")})


def sketch(table: Table, roles: Roles) -> tuple[Table, Sketch]:
    """A site's table without the rows that the rule for missing values leaves out, and what it tells of it."""
    features = features_of({"here": table}, roles)
    kept = complete(table, roles, features)
    if kept.rows == 0:
        raise FoedusError(f"{table.source}: every row has a missing value, so missing = 'drop' leaves none.")
    holds = []
    for name in features:
        nothing = missing_in(kept.columns[name]).all() and name not in roles.categorical
        holds.append(EMPTY if nothing else WORDS if holds_words(name, {"here": kept}, roles) else NUMBERS)

    def values(name: str | None) -> tuple[str, ...]:
        return () if name is None else text_of(kept.columns[name]).used().levels

    labels = values(roles.label) if roles.classification else ()
    return kept, Sketch(features, tuple(holds), labels, values(roles.group))


def agreed(sketches: Mapping[str, Sketch], roles: Roles) -> Cohort:
    """The cohort, without tables, that sites with these sketches make."""
    first, one = next(iter(sketches.items()))
    for site, other in sketches.items():
        if roles.features is not None:
            break
        for name in one.features:
            if name not in other.features:
                hint = did_you_mean(name, set(other.features) - set(one.features))
                raise FoedusError(
                    f"client {site!r}: it has no column {name!r}, which client {first!r} has; every site needs the "
                    f"same columns, or name the common ones in features.{hint}"
                )
        if extra := sorted(set(other.features) - set(one.features)):
            raise FoedusError(
                f"client {site!r}: its column {extra[0]!r} is not at client {first!r}; every site needs the same "
                "columns, or name the common ones in features."
            )
    words = set()
    for name in one.features:
        found = {site: dict(zip(s.features, s.holds, strict=True))[name] for site, s in sketches.items()}
        wordy = [site for site, what in found.items() if what == WORDS]
        numeric = [site for site, what in found.items() if what == NUMBERS]
        if wordy and numeric:
            raise FoedusError(
                f"client {wordy[0]!r}: its column {name!r} holds words, but at client {numeric[0]!r} it holds numbers; "
                "if these are codes, put the column into 'categorical' in [data]."
            )
        words |= {name} if wordy else set()
    labels = (
        labels_of(in_order({v for s in sketches.values() for v in s.labels}), roles) if roles.classification else ()
    )
    groups = groups_of(in_order({v for s in sketches.values() for v in s.groups}), roles)
    return Cohort({}, roles, one.features, frozenset(words), labels, groups if roles.group is not None else ())
