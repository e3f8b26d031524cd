"""An algorithm made ready for its run, with noise and for masked sums; refusals come as `solve` would word them."""

import numpy as np

from foedus.app.experiment.build import RunSetup, rounds_of, secure_of
from foedus.base.errors import FoedusError
from foedus.privacy.releasing import check_data, make_private
from foedus.protocol.algorithm import Fit
from foedus.sums.masking import by_sums, check_shares, masking_of


def fit_of(setup: RunSetup) -> Fit:
    """Return the algorithm of a run, fitted with its noise; in the form that needs only sums where no more is seen."""
    algorithm, secure = setup.algorithm, secure_of(setup.settings)
    if setup.privacy:
        limit = rounds_of(setup.settings, algorithm, setup.problem)
        arguments = (setup.privacy.get("privacy"), setup.privacy.get("budget"))
        algorithm = make_private(algorithm, *arguments, setup.problem, limit)
    return (by_sums(algorithm) if secure else algorithm).fit(setup.problem)


def check(setup: RunSetup) -> None:
    """Raise, before any round, where `solve` would refuse the privacy or the masked sums that a file asks for."""
    secure = secure_of(setup.settings)
    if not setup.privacy and not secure:
        return
    problem = setup.problem
    try:
        fit = fit_of(setup)
        check_shares(fit.algorithm, problem, setup.participation, secure)
        check_data(problem, fit.algorithm, np.zeros(problem.terms.dim))
    except FoedusError as error:
        raise FoedusError(f"{'[privacy]' if setup.privacy else '[run] secure'}: {error}") from None
    if secure:
        try:
            masking_of(fit.algorithm, problem.terms)
        except FoedusError as error:
            raise FoedusError(f"[run] secure: {error}") from None
