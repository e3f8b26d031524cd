"""The keys of an experiment file: what each is for, the kind of its value, its default and its range."""

from dataclasses import dataclass

from foedus.data.formats import DECIMALS, SEPARATORS
from foedus.data.partition import PARTITIONERS
from foedus.data.preprocess import SCALES
from foedus.data.sites import RULES


@dataclass(frozen=True)
class Key:
    """One key: the kind of its value, what it is for, and whether a list of values makes several runs."""

    kind: str  # one of KINDS
    doc: str
    default: object = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    sweeps: bool = False


KINDS = {
    "text": "text in quotes",
    "number": "a number",
    "whole": "a whole number",
    "flag": "true or false",
    "texts": "a list of texts",
    "value": "text or a number",
    "table": "a table",
    "files": "a file name, a list of them, or a table of site = file",
    "offer": "a name, or a table with a name and settings",
}

TOP = {
    "name": Key("text", "what the run is called; the file's name when left out"),
    "seed": Key("whole", "keys every random draw", 0, least=0, most=2**63 - 1, sweeps=True),
    "out": Key("text", "the folder for the run directory; runs/<name> when left out"),
}
DATA = {
    "files": Key("files", "one file a site: a pattern, a list, or a table of site = file"),
    "file": Key("text", "one file for all sites; 'site' names the column that tells them apart"),
    "site": Key("text", "the column with the site of each row"),
    "set": Key("text", "a data set by name, dealt out to sites by [partition]"),
    "separator": Key("text", "what stands between the cells of a text file", None, tuple(SEPARATORS)),
    "encoding": Key("text", "the encoding of a text file, as 'utf-8' or 'latin-1'"),
    "decimal": Key("text", "the decimal sign of a text file", None, DECIMALS),
    "sites": Key("table", "remedies for single sites: [data.sites.NAME]"),
    "server": Key("text", "a file that the server itself holds, for constraints of global scope"),
    "label": Key("text", "the column to predict"),
    "positive": Key("value", "the label that counts as 1"),
    "group": Key("text", "the column with the group of each row, for constraints between groups"),
    "features": Key("texts", "the columns to predict from; all others when left out"),
    "drop": Key("texts", "columns to leave out", ()),
    "categorical": Key("texts", "columns of numbers that are codes, not quantities", ()),
    "missing": Key("text", "'mean' fills in, 'drop' leaves rows out, 'error' refuses", "mean", RULES),
    "max_categories": Key("whole", "the most different words in a column", 50, least=2),
}
PARTITION = {
    "method": Key("text", "how rows are dealt out to sites", "iid", tuple(PARTITIONERS)),
    "num_partitions": Key("whole", "how many sites", None, least=1, sweeps=True),
    "alpha": Key("number", "for dirichlet and power_law", None, sweeps=True),
    "num_shards_per_partition": Key("whole", "for shards", None, least=1, sweeps=True),
    "min_partition_size": Key("whole", "for dirichlet", None, least=1, sweeps=True),
    "partition_by": Key("text", "the column to deal out by; the label when left out"),
    "seed": Key("whole", "keys the draw", 0, least=0, sweeps=True),
}
PREPROCESS = {
    "scale": Key("text", "of number columns", "standard", SCALES),
    "intercept": Key("flag", "whether the model has a constant", True),
    "bounds": Key("table", "columns whose range is stated: column = [low, high]; no site is asked about them"),
    "epsilon": Key("number", "standardise columns of stated bounds by noisy sums that spend this much", sweeps=True),
    "categories": Key("table", "columns whose words are stated: column = [words]; no site is asked about them"),
}
PROBLEM = {
    "loss": Key("offer", "the loss of one row", {"name": "logistic"}),
    "where": Key("text", "the rows that count in the objective, as 'label 0' or 'group F'; all when left out"),
    "penalty": Key("offer", "a smooth penalty on the model, the intercept excepted"),
    "regularizer": Key("offer", "a regulariser of the model, the intercept excepted"),
}
PARTICIPATION = {
    "fraction": Key("number", "the share of the sites asked in each round", 1.0, sweeps=True),
    "dropout": Key("number", "the share of replies that get lost", 0.0, sweeps=True),
    "every": Key("whole", "ask every site at least once in so many rounds", None, least=1, sweeps=True),
}
EVALUATE = {
    "holdout": Key("number", "the share of each site's rows that is kept out of training to evaluate the model on"),
    "epsilon": Key("number", "under [privacy]: what the figures spend of a held-out row; all when left out"),
    "delta": Key("number", "the delta that goes with it; that of [privacy] when left out"),
}
RUN = {
    "max_rounds": Key("whole", "the most rounds; the algorithm's own limit when left out", None, least=1, sweeps=True),
    "runtime": Key(
        "offer", "where the rounds are played: in this process, or by sites of their own", {"name": "simulate"}
    ),
    "secure": Key("flag", "whether the server sees sums over sites alone (masked sums)", False),
}
PRIVACY = {
    "kind": Key("text", "of a total: noise of each site's own, or in shares of one curator's", "local"),
    "epsilon": Key("number", "the total for each site over the whole run; with noise, that of one release"),
    "delta": Key("number", "the delta that goes with it; 0 when left out"),
    "tolerate": Key("whole", "of kind central: how many sites may collude or vanish in all", least=0),
    "least_rows": Key("whole", "of kind central: the rows of a site that the sensitivity is computed for", least=1),
    "noise": Key("text", "the noise of one release, in place of a total"),
    "budget": Key("number", "with noise: the total after which a site takes no further part"),
}

SECTIONS: dict[str, dict[str, Key]] = {
    "data": DATA,
    "partition": PARTITION,
    "preprocess": PREPROCESS,
    "problem": PROBLEM,
    "participation": PARTICIPATION,
    "run": RUN,
    "evaluate": EVALUATE,
}
OPEN = ("algorithm", "constraints", "privacy")  # sections whose keys come from the package
