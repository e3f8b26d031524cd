"""foedus-lab: what shows that foedus holds: experiments of the papers, a study, benchmarks, attacks on the noise."""
