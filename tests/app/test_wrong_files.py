"""Wrong experiment files and data files: each gets one sentence that names it, status 2, and nothing is written."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foedus.app import cli

GOOD = """\
seed = 0
out = "runs/{name}"

[data]
files = "sites/*.csv"
label = "ill"
positive = "yes"
group = "sex"

[problem]
where = "label no"

[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.7

[algorithm]
name = "ProxAL"
beta = 100

[run]
max_rounds = 5
""".replace("{name}", "wrong")

HEADER = "age,dose,ward,sex,ill\n"
NORTH = HEADER + "61,1.5,a,F,yes\n50,0.5,b,M,no\n47,1.0,a,F,no\n70,2.5,b,M,yes\n"
SOUTH = HEADER + "39,0.5,b,F,no\n66,2.0,a,M,yes\n58,1.5,a,F,no\n73,3.0,b,M,yes\n"


@dataclass(frozen=True)
class Wrong:
    """What is changed in the good experiment, and the words that the sentence must have."""

    name: str
    words: tuple[str, ...]
    text: Callable[[str], str | bytes] = lambda text: text
    files: dict[str, str | bytes | None] = field(default_factory=dict)
    asked: str = "study.toml"

    def __str__(self) -> str:
        return self.name


def swap(old: str, new: str) -> Callable[[str], str]:
    """The good text with one passage replaced, which must be there."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


def add(more: str) -> Callable[[str], str]:
    return lambda text: text + more


def top(more: str) -> Callable[[str], str]:
    return lambda text: more + text


def south(text: str | bytes) -> dict[str, str | bytes | None]:
    return {"sites/south.csv": text}


def with_names(text: str) -> str:
    """The table with a first column that is different in every row."""
    first, *rows = text.splitlines()
    return "\n".join([f"name,{first}", *(f"p{i},{row}" for i, row in enumerate(rows))]) + "\n"


LOSS = swap("[problem]\n", '[problem]\nloss = "logistics"\n')
CAP = '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 0.7\n'


def dealt(partition: str) -> Callable[[str], str]:
    """An experiment on a built-in set, dealt out by this."""
    return lambda text: f'[data]\nset = "breast-cancer"\n{partition}\n[algorithm]\nname = "FedGiA"\n'


FILES = [
    Wrong("no such file", ("stduy.toml", "no such file", "Did you mean 'study.toml'?"), asked="stduy.toml"),
    Wrong("not TOML", ("study.toml", "not valid TOML", "line 1"), lambda _: "seed == 0\n"),
    Wrong("not text", ("study.toml", "UTF-8"), lambda _: b"seed = 0 # \xff\xfe\n"),
    Wrong("unknown section", ("'algoritm'", "Did you mean 'algorithm'?"), swap("[algorithm]", "[algoritm]")),
    Wrong("unknown key at the top", ("'sead'", "Did you mean 'seed'?"), swap("seed = 0", "sead = 0")),
    Wrong("unknown key in a section", ("[data]", "'lable'", "Did you mean 'label'?"), swap("label = ", "lable = ")),
    Wrong("key in the wrong place", ("'max_rounds'", "belongs into [run]"), top("max_rounds = 3\n")),
    Wrong("a section that is a value", ("'participation'", "[participation]"), top("participation = 0.5\n")),
    Wrong("no data", ("[data] is missing",), lambda _: '[algorithm]\nname = "FedGiA"\n'),
    Wrong("algorithm without a name", ("[algorithm] needs a name", "FedGiA"), swap('name = "ProxAL"\n', "")),
    Wrong("unknown algorithm", ("'ProxLA'", "Did you mean 'ProxAL'?"), swap('"ProxAL"', '"ProxLA"')),
    Wrong("unknown setting", ("ProxAL", "'betta'", "Did you mean 'beta'?"), swap("beta = 100", "betta = 100")),
    Wrong("setting out of range", ("[algorithm]", "'beta'", "> 0", "-1"), swap("beta = 100", "beta = -1")),
    Wrong("setting of the wrong kind", ("'beta'", "'big'"), swap("beta = 100", 'beta = "big"')),
    Wrong("one wrong value of a sweep", ("'beta'", "-3"), swap("beta = 100", "beta = [100, -3]")),
    Wrong("unknown loss", ("'logistics'", "Did you mean 'logistic'?"), LOSS),
    Wrong("loss without its setting", ("huber", "'eps'"), swap("[problem]\n", '[problem]\nloss = "huber"\n')),
    Wrong(
        "unknown penalty", ("'Rigde'", "Did you mean 'Ridge'?"), swap("[problem]\n", '[problem]\npenalty = "Rigde"\n')
    ),
    Wrong(
        "constraints in single brackets", ("[[constraints]]", "two brackets"), swap("[[constraints]]", "[constraints]")
    ),
    Wrong("constraint without a type", ("[[constraints]] 1", "type", "LossCap"), swap('type = "LossCap"\n', "")),
    Wrong("unknown constraint", ("'LosCap'", "Did you mean 'LossCap'?"), swap('"LossCap"', '"LosCap"')),
    Wrong("constraint without its cap", ("LossCap", "'at_most'"), swap("at_most = 0.7\n", "")),
    Wrong("misspelt cap", ("'atmost'", "Did you mean 'at_most'?"), swap("at_most", "atmost")),
    Wrong("cap that is no number", ("'at_most'", "'low'"), swap("at_most = 0.7", 'at_most = "low"')),
    Wrong(
        "where in other words",
        ("[[constraints]] 1 where", "'lable yes'", "'label VALUE'"),
        swap('"label yes"', '"lable yes"'),
    ),
    Wrong("label that does not occur", ("'label maybe'", "'ill'", "no, yes"), swap('"label yes"', '"label maybe"')),
    Wrong(
        "group that is not named",
        ("group", "[data]"),
        lambda t: swap('"label yes"', '"group F"')(t.replace('group = "sex"\n', "")),
    ),
    Wrong("group that does not occur", ("'group X'", "'sex'", "F, M"), swap('"label yes"', '"group X"')),
    Wrong("negative seed", ("seed", ">= 0", "-1"), swap("seed = 0", "seed = -1")),
    Wrong("seed in words", ("seed", "a whole number", "'one'"), swap("seed = 0", 'seed = "one"')),
    Wrong("empty list", ("seed", "empty"), swap("seed = 0", "seed = []")),
    Wrong("too many runs", ("2000 runs", "at most 1000"), swap("seed = 0", f"seed = {list(range(2000))}")),
    Wrong("nobody takes part", ("[participation]", "(0, 1]"), add("[participation]\nfraction = 0\n")),
    Wrong("coverage out of reach", ("[participation]", "1 of 2"), add("[participation]\nfraction = 0.5\nevery = 1\n")),
    Wrong("unknown rule", ("missing", "'mean'", "'men'", "Did you mean"), swap('group = "sex"', 'missing = "men"')),
    Wrong("two sources", ("[data]", "files and set"), swap("[data]\n", '[data]\nset = "iris"\n')),
    Wrong("no source", ("files, file, source and set",), swap('files = "sites/*.csv"\n', "")),
    Wrong("site with files", ("site", "files"), swap("[data]\n", '[data]\nsite = "sex"\n')),
    Wrong("partition with files", ("[partition]", "files"), add("[partition]\nnum_partitions = 2\n")),
    Wrong("one table for nobody", ("set", "[partition]"), dealt("")),
    Wrong(
        "unknown set",
        ("'brest-cancer'", "Did you mean 'breast-cancer'?"),
        lambda t: dealt("[partition]\nnum_partitions = 2")(t).replace("breast", "brest"),
    ),
    Wrong(
        "key of another partitioner",
        ("'iid'", "'alpha'", "num_partitions"),
        dealt("[partition]\nnum_partitions = 3\nalpha = 1.0"),
    ),
    Wrong("partition without a number", ("num_partitions",), dealt('[partition]\nmethod = "dirichlet"')),
    Wrong("natural without a column", ("'natural'", "partition_by"), dealt('[partition]\nmethod = "natural"')),
    Wrong(
        "unknown partitioner", ("'dirichelt'", "Did you mean 'dirichlet'?"), dealt('[partition]\nmethod = "dirichelt"')
    ),
    Wrong("more sites than rows", ("[partition]", "1 to 569", "600"), dealt("[partition]\nnum_partitions = 600")),
    Wrong(
        "algorithm that takes no constraints",
        ("FedAvg", "constraints", "InteriorPoint, or leave the choice to auto"),
        swap('"ProxAL"\nbeta = 100', '"FedAvg"'),
    ),
    Wrong(
        "algorithm that takes no regulariser",
        ("FedAvg", "leave the choice to auto"),
        lambda t: (
            swap("[problem]\n", '[problem]\nregularizer = { name = "L1", lam = 0.1 }\n')(t)
            .replace('"ProxAL"\nbeta = 100', '"FedAvg"')
            .replace(CAP, "")
        ),
    ),
    Wrong("label left out", ("drop", "'ill'", "label"), swap('group = "sex"', 'drop = ["ill"]')),
    Wrong("bounds the wrong way", ("age", "low < high"), add("[preprocess.bounds]\nage = [100, 0]\n")),
    Wrong("bounds of no feature", ("'aeg'", "Did you mean 'age'?"), add("[preprocess.bounds]\naeg = [0, 100]\n")),
    Wrong(
        "unknown scale", ("scale", "'standrad'", "Did you mean 'standard'?"), add('[preprocess]\nscale = "standrad"\n')
    ),
    Wrong("file in the way", ("runs", "a file is in the way"), files={"runs": "a file"}),
    Wrong(
        "folder of something else", ("runs/wrong", "no run directory", "--out"), files={"runs/wrong/notes.txt": "mine"}
    ),
]

DATA = [
    Wrong(
        "noise in the wrong place",
        ("[algorithm]", "[privacy]"),
        swap('"ProxAL"\nbeta = 100', '"FedEPM"\nnoise = "Laplace"'),
    ),
    Wrong(
        "runtime that is not installed",
        ("[run] runtime", "pip install 'foedus[flare]'"),
        swap("max_rounds = 5", 'max_rounds = 5\nruntime = "Flare"'),
    ),
    Wrong(
        "data file that is not there",
        ("nort.csv", "Did you mean 'north.csv'?"),
        swap('"sites/*.csv"', '["sites/nort.csv"]'),
    ),
    Wrong("pattern that matches nothing", ("'hospitals/*.csv'", "no file matches"), swap("sites/*", "hospitals/*")),
    Wrong("folder instead of a file", ("sites", "folder"), swap('"sites/*.csv"', '["sites"]')),
    Wrong("empty file", ("south.csv", "empty"), files=south("")),
    Wrong("header alone", ("south.csv", "no rows"), files=south(HEADER)),
    Wrong(
        "other separator",
        ("south.csv", "one column", "separator = ';'"),
        swap("[data]", '[data]\nseparator = ","'),
        files=south(SOUTH.replace(",", ";")),
    ),
    Wrong(
        "remedy of no site",
        ("[data.sites.sout]", "no such site", "'south'"),
        swap("[problem]", '[data.sites.sout]\ndrop = ["dose"]\n[problem]'),
    ),
    Wrong(
        "remedy of another kind",
        ("[data.sites.south]", "no key 'scales'", "Did you mean 'scale'"),
        swap("[problem]", "[data.sites.south]\nscales.age = 2\n[problem]"),
    ),
    Wrong(
        "factor of 0",
        ("[data.sites.south] scale", "'age'", "Got 0"),
        swap("[problem]", "[data.sites.south]\nscale.age = 0\n[problem]"),
    ),
    Wrong(
        "map of a value that is not there",
        ("south.csv", "map.ward", "'zzz'"),
        swap("[problem]", '[data.sites.south]\nmap.ward.zzz = "a"\n[problem]'),
    ),
    Wrong(
        "scale of words",
        ("south.csv", "[data.sites.south] scale", "'ward'"),
        swap("[problem]", "[data.sites.south]\nscale.ward = 2\n[problem]"),
    ),
    Wrong(
        "rename to a name that is taken",
        ("[data.sites.south] rename", "'dose'"),
        swap("[problem]", '[data.sites.south]\nrename.age = "dose"\n[problem]'),
    ),
    Wrong(
        "unknown encoding",
        ("[data.sites.south] encoding", "'latin-99'"),
        swap("[problem]", '[data.sites.south]\nencoding = "latin-99"\n[problem]'),
    ),
    Wrong("two columns of a name", ("south.csv", "line 1", "'age'"), files=south(SOUTH.replace("dose", "age", 1))),
    Wrong("column without a name", ("south.csv", "column 2 has no name"), files=south(SOUTH.replace("dose", "", 1))),
    Wrong("no header", ("south.csv", "line 1", "names of the columns"), files=south("1,2,3,4,5\n1,2,3,4,5\n")),
    Wrong(
        "short row", ("south.csv, line 3", "4 cells", "5"), files=south(SOUTH.replace("66,2.0,a,M,yes", "66,2.0,a,M"))
    ),
    Wrong("spreadsheet", ("book.xlsx", "Excel"), swap('"sites/*.csv"', '["book.xlsx"]'), {"book.xlsx": b"PK"}),
    Wrong("not text", ("south.csv", "UTF-8"), files=south(b"age,ill\n\x00\xfe,1\n")),
    Wrong(
        "damaged Parquet", ("south.parquet", "Parquet"), swap("*.csv", "*.parquet"), {"sites/south.parquet": b"PAR1 no"}
    ),
    Wrong("no label column", ("north.csv", "'sick'", "age, dose"), swap('label = "ill"', 'label = "sick"')),
    Wrong("misspelt label column", ("'il'", "Did you mean 'ill'?"), swap('label = "ill"', 'label = "il"')),
    Wrong(
        "site without a column",
        ("south.csv", "'dose'", "Did you mean 'doze'?"),
        files=south(SOUTH.replace("dose", "doze", 1)),
    ),
    Wrong("site with another column", ("south.csv", "'bmi'"), files=south("bmi," + SOUTH.replace("\n", "\n1,")[:-2])),
    Wrong(
        "word among numbers",
        ("south.csv, line 4", "'age'", "'old'", "categorical"),
        files=south(SOUTH.replace("58", "old")),
    ),
    Wrong(
        "words at one site",
        ("south.csv, line 2", "'dose'", "'low'"),
        files=south(HEADER + "39,low,b,F,no\n66,high,a,M,yes\n"),
    ),
    Wrong(
        "missing label",
        ("south.csv, line 3", "label 'ill' is missing", "'drop'"),
        files=south(SOUTH.replace("2.0,a,M,yes", "2.0,a,M,")),
    ),
    Wrong(
        "missing group",
        ("south.csv, line 3", "group 'sex' is missing"),
        files=south(SOUTH.replace("2.0,a,M", "2.0,a,NA")),
    ),
    Wrong(
        "missing value",
        ("south.csv, line 3", "'dose' is missing"),
        swap('group = "sex"', 'missing = "error"'),
        south(SOUTH.replace("2.0", "?")),
    ),
    Wrong("infinite number", ("south.csv, line 3", "'dose'", "infinite"), files=south(SOUTH.replace("2.0", "inf"))),
    Wrong(
        "three labels",
        ("'ill'", "maybe, no, yes", "positive"),
        swap('positive = "yes"\n', ""),
        south(SOUTH.replace("3.0,b,M,yes", "3.0,b,M,maybe")),
    ),
    Wrong("positive that does not occur", ("'Yes'", "Did you mean 'yes'?"), swap('"yes"', '"Yes"')),
    Wrong(
        "one class",
        ("'ill' is 'no' in every row",),
        files={"sites/north.csv": NORTH.replace("yes", "no"), "sites/south.csv": SOUTH.replace("yes", "no")},
    ),
    Wrong("site without the capped label", ("site 'south'", "label yes"), files=south(SOUTH.replace("yes", "no"))),
    Wrong(
        "names as a feature",
        ("'name'", "max_categories", "drop"),
        swap('group = "sex"', 'group = "sex"\nmax_categories = 3'),
        {"sites/north.csv": with_names(NORTH), "sites/south.csv": with_names(SOUTH)},
    ),
    Wrong(
        "nothing left",
        ("south.csv", "every row"),
        swap('group = "sex"', 'missing = "drop"'),
        south(HEADER + "NA,1,a,F,no\n?,2,b,M,yes\n"),
    ),
    Wrong(
        "two files of a name",
        ("'south'", "files = {"),
        swap('"sites/*.csv"', '["sites/south.csv", "more/south.csv"]'),
        {"more/south.csv": SOUTH},
    ),
    Wrong(
        "number predicted from words",
        ("north.csv, line 2", "'yes'", "a number"),
        lambda t: (
            swap('[problem]\nwhere = "label no"\n', '[problem]\nloss = "least_squares"\n')(t)
            .replace('positive = "yes"\n', "")
            .replace(CAP, "")
        ),
    ),
    Wrong(
        "row without its site",
        ("all.csv, line 3", "'sex'"),
        lambda t: t.replace('files = "sites/*.csv"', 'file = "all.csv"\nsite = "sex"').replace('group = "sex"\n', ""),
        {"all.csv": NORTH.replace("b,M,no", "b,,no")},
    ),
    Wrong("column of words with bounds", ("'ward'", "words"), add("[preprocess.bounds]\nward = [0, 1]\n")),
]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/north.csv").write_text(NORTH)
    (tmp_path / "sites/south.csv").write_text(SOUTH)
    return tmp_path


def write(folder: Path, wrong: Wrong) -> None:
    text = wrong.text(GOOD)
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "study.toml").write_bytes(content)
    for name, held in wrong.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held if isinstance(held, bytes) else (held or "").encode())


@pytest.mark.parametrize("wrong", [*FILES, *DATA], ids=str)
def test_one_sentence_names_what_is_wrong(
    wrong: Wrong, study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    installed = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nvflare" else installed(name))
    write(study, wrong)
    before = snapshot(study)
    status = cli.run(["run", wrong.asked])
    printed = capsys.readouterr()
    assert status == 2, printed
    assert printed.out == ""
    assert printed.err.startswith("foedus: ")
    assert printed.err.count("\n") == 1, printed.err
    for word in wrong.words:
        assert word in printed.err, printed.err
    assert snapshot(study) == before


def test_there_are_forty_kinds_and_more():
    names = [wrong.name for wrong in (*FILES, *DATA)]
    assert len(names) >= 40


def test_the_experiment_they_are_made_from_is_right(study: Path, capsys: pytest.CaptureFixture[str]):
    write(study, Wrong("right", ()))
    before = snapshot(study)
    assert cli.run(["check", "study.toml"]) == 0, capsys.readouterr().err
    assert "everything fits" in capsys.readouterr().out
    assert snapshot(study) == before
