"""The study: every algorithm on every problem that it solves, on the same footing; behind `foedus study`."""
