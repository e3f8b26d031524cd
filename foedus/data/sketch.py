"""Sketches: what a site reveals of its table so that the server can check that all sites mean the same.

`sites.gather` makes this check where all tables are in one place. Here each site sends a `Sketch`: the names of its
columns, which of them hold words, and the values of its label and its group. No row leaves the site, and no error
message of the server contains a value of a feature.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data.columns import missing_in, text_of
from foedus.data.sites import Cohort, Roles, complete, features_of, groups_of, holds_words, in_order, labels_of
from foedus.data.tables import Table

EMPTY, NUMBERS, WORDS = "nothing", "numbers", "words"


@dataclass(frozen=True)
class Sketch:
    """What a site reveals of its table before the server asks for sums."""

    features: tuple[str, ...]
    holds: tuple[str, ...]  # of each feature: "numbers", "words", or "nothing" where all its values are missing
    labels: tuple[str, ...]  # the values of the label; none in a regression
    groups: tuple[str, ...]

    def to_json(self) -> Json:
        """Return the sketch as a JSON object."""
        return {name: list(values) for name, values in asdict(self).items()}

    @staticmethod
    def from_json(record: Json) -> "Sketch":
        """Read what `to_json` wrote; the values may come from a site that is not to be trusted, so all become text."""
        return Sketch(**{name: tuple(map(str, record[name])) for name in ("features", "holds", "labels", "groups")})


def sketch(table: Table, roles: Roles) -> tuple[Table, Sketch]:
    """Return a site's table, without the rows that the rule for missing values leaves out, and its sketch."""
    features = features_of({"here": table}, roles)
    rest = complete(table, roles, features)
    if rest.rows == 0:
        raise FoedusError(f"{table.source}: every row has a missing value, so missing = 'drop' leaves none.")
    holds = []
    for name in features:
        # a column without values fits both kinds, so another site decides what it holds
        nothing = missing_in(rest.columns[name]).all() and name not in roles.categorical
        holds.append(EMPTY if nothing else WORDS if holds_words(name, {"here": rest}, roles) else NUMBERS)

    def values(name: str | None) -> tuple[str, ...]:
        return () if name is None else text_of(rest.columns[name]).used().levels

    labels = values(roles.label) if roles.classification else ()
    return rest, Sketch(features, tuple(holds), labels, values(roles.group))


def cohort_from(sketches: Mapping[str, Sketch], roles: Roles) -> Cohort:
    """Return the cohort, without tables, of sites with these sketches; raise where their columns do not agree."""
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
        contents = {site: dict(zip(s.features, s.holds, strict=True))[name] for site, s in sketches.items()}
        wordy = [site for site, what in contents.items() if what == WORDS]
        numeric = [site for site, what in contents.items() if what == NUMBERS]
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
