"""The policy of hospitals under privacy."""

from wards import FREE

from foedus.federation.policy import Policy

PRIVATE = Policy(**FREE, max_epsilon=30.0, secure=True)
