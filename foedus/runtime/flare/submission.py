"""A run that the coordinator submits without data: the experiment file states the terms, the sites bring the rest."""

import dataclasses
import json
import re
import time
import tomllib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import foedus as fd
from foedus.algorithm import Algorithm
from foedus.errors import FoedusError, did_you_mean
from foedus.losses import as_loss
from foedus.regularizers import Zero
from foedus.run import Run, Traffic, describe, versions
from foedus.runtime.checkpoint import write_whole
from foedus.runtime.flare.console import FINISHED, Console, Unreachable
from foedus.runtime.flare.kits import job
from foedus.runtime.flare.names import ENDED, ORDER, RESULT
from foedus.runtime.flare.order import Order, Patience, Result
from foedus.runtime.participation import Coverage, Fraction
from foedus.stacked import Stacked
from foedus.terms import Mask, Shape, Terms, Where

MASK = re.compile(r"(label|group)\s+(-?[0-9.eE+-]+)")
PARTS = ("name", "seed", "algorithm", "problem", "constraints", "participation", "run")


def order_from(path: Path, sites: tuple[str, ...]) -> Order:
    """The order that an experiment file states, for these sites; the number of columns is left to the sites."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FoedusError(f"the experiment file {path} is missing.") from None
    except (OSError, ValueError) as error:
        raise FoedusError(f"the experiment file {path} cannot be read: {error}.") from None
    for key in told:
        if key == "data":
            raise FoedusError(f"{path}: [data] belongs into the sites' own files; a submitted experiment brings none.")
        if key not in PARTS:
            raise FoedusError(f"{path}: {key!r} is unknown.{did_you_mean(key, PARTS)}")
    algorithm = _offer(path, "algorithm", told.get("algorithm"), _algorithms())
    problem = told.get("problem", {})
    asked = told.get("participation", {})
    try:
        who = Coverage(**asked) if "every" in asked else Fraction(**asked)
        who.check(len(sites))
    except TypeError:
        raise FoedusError(f"{path}: [participation] takes fraction, dropout and every. Got {sorted(asked)}.") from None
    terms = Terms(
        clients=len(sites),
        shape=Shape.of(np.zeros(0)),
        loss=as_loss(_offer(path, "[problem] loss", problem.get("loss", "logistic"), _losses())),
        where=_mask(path, problem["where"]) if "where" in problem else None,
        penalty=_offer(path, "[problem] penalty", problem["penalty"], _members(fd.penalties))
        if "penalty" in problem
        else None,
        regularizer=_offer(path, "[problem] regularizer", problem["regularizer"], _members(fd.regularizers))
        if "regularizer" in problem
        else Zero(),
        constraints=tuple(_constraint(path, c) for c in told.get("constraints", ())),
    )
    names = Stacked({"x": np.zeros((len(sites), 1))}, names=sites)
    rounds = told.get("run", {}).get("max_rounds", algorithm.default_rounds)
    return Order(
        run=uuid.uuid4().hex[:12],
        terms=terms,
        algorithm=algorithm,
        w0=np.zeros(0),
        sites=sites,
        names=sites,
        uids=names.uids(),
        seed=int(told.get("seed", 0)),
        max_rounds=int(rounds),
        participation=who,
    )


def _algorithms() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(fd, name) for name in fd.__all__}
    return {k: v for k, v in found.items() if isinstance(v, type) and issubclass(v, Algorithm) and not v.pools}


def _members(module: Any) -> dict[str, Callable[..., Any]]:
    return {k: v for k, v in vars(module).items() if k[:1].isupper() and callable(v)}


def _losses() -> dict[str, Any]:
    names = ("least_squares", "logistic", "hinge", "smooth_hinge", "huber", "epsilon_insensitive", "pinball")
    return {name: getattr(fd.losses, name) for name in names}


def _offer(path: Path, place: str, asked: Any, known: Mapping[str, Any]) -> Any:
    """The thing of this name with these settings."""
    given = {"name": asked} if isinstance(asked, str) else dict(asked or {})
    name = str(given.pop("name", None))
    if name not in known:
        hint = did_you_mean(name, known)
        raise FoedusError(f"{path}: {place} must name one of {', '.join(sorted(known))}. Got {name!r} instead.{hint}")
    made = known[name]
    if not isinstance(made, type) and not given and not callable(made):
        return made
    try:
        return made(**given)
    except TypeError:
        raise FoedusError(f"{path}: {place} {name} does not take the settings {sorted(given)}.") from None


def _mask(path: Path, words: Any) -> Mask:
    found = MASK.fullmatch(str(words).strip())
    if found is None:
        raise FoedusError(f"{path}: a subgroup is 'label VALUE' or 'group VALUE'. Got {words!r} instead.")
    return Where("y" if found[1] == "label" else "group", float(found[2]))


def _constraint(path: Path, asked: Mapping[str, Any]) -> Any:
    kinds = {"LossCap": fd.constraints.LossCap, "LossGap": fd.constraints.LossGap, "NormBall": fd.constraints.NormBall}
    given = dict(asked)
    given = {"name": given.pop("type", None)} | {
        k: _mask(path, v) if k in ("where", "first", "second") else v for k, v in given.items()
    }
    made = _offer(path, "[[constraints]] type", given, kinds)
    if made.scope == "global":
        raise FoedusError(
            f"{path}: a constraint of global scope needs data at the server, and a submission brings none."
        )
    return made


def submit(
    order: Order, kit: Path, out: Path, *, transport: str, keep_going: int, patience: Patience | None = None
) -> Run:
    """Keep the order in `out`, then run it from the coordinator's kit."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / ORDER, order.to_bytes())
    told = dataclasses.asdict(patience or Patience())
    note = {"kit": str(kit.absolute()), "transport": transport, "patience": told, "run": order.run}
    write_whole(out / "submission.json", json.dumps(note, indent=1).encode())
    return resume(out, keep_going)


def resume(out: Path, keep_going: int = 0) -> Run:
    """Run, or go on with, the order kept in `out`; the answer goes there too."""
    try:
        note = json.loads((out / "submission.json").read_text())
        content = (out / ORDER).read_bytes()
    except (OSError, ValueError):
        raise FoedusError(f"{out} holds no submitted run; 'foedus federation submit' makes one.") from None
    order = Order.from_bytes(content, _modules(content))
    sentence = ""
    for attempt in range(keep_going + 1):
        sentence = "its job ended without a word"
        try:
            with Console(Path(note["kit"])) as console:
                console.wait_for_sites(order.sites, 60.0)
                made = job(out / "job", order.run, content, order.sites, note["transport"], note["patience"])
                number = console.submit(made)
                while not console.status(number).startswith(FINISHED):
                    time.sleep(0.5)
                result, ended = console.download(number, RESULT), console.download(number, ENDED)
            if result is not None:
                return _run(order, Result.from_bytes(result), out)
            how = json.loads(ended) if ended else {}
            sentence = how.get("sentence", sentence)
            if how.get("how") == "refused":
                raise FoedusError(sentence)
        except Unreachable as error:
            sentence = str(error)
        if attempt < keep_going:
            time.sleep(2.0)
    raise FoedusError(
        f"the run stopped: {sentence.removesuffix('.')}; 'foedus federation resume {out}' goes on with it."
    )


def _modules(content: bytes) -> tuple[str, ...]:
    """The coordinator reads back what it wrote itself."""
    from foedus.runtime.checkpoint import unpack

    found = re.findall(r'"name": "([A-Za-z0-9_.]+):', json.dumps(unpack(content)[1]))
    return tuple(sorted(set(found)))


def _run(order: Order, result: Result, out: Path) -> Run:
    settings = {
        "algorithm": describe(order.algorithm) | {"name": order.algorithm.name},
        "problem": describe(order.terms) | {"name": "Problem", "shape": [list(result.w.shape)]},
        "participation": describe(order.participation),
        "seed": order.seed,
        "max_rounds": order.max_rounds,
        "versions": versions(),
    }
    traffic = Traffic(int(np.sum(result.history.get("bytes_up", 0))), int(np.sum(result.history.get("bytes_down", 0))))
    run = Run(
        w=result.w,
        objective=result.objective,
        rounds=len(result.history.get("phase", ())),
        converged=result.converged,
        reason=result.reason,
        certificate=result.certificate,
        history=result.history,
        traffic=traffic,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        settings=settings,
        multipliers=result.multipliers,
        names=list(order.names),
    )
    run.save(out)
    return run
