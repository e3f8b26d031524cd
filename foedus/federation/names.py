"""Names that the FLARE side and the driver share."""

TOPIC = "foedus"  # of aux messages and tasks
FIELD = "m"  # the one entry of a Shareable: bytes, for arrays would travel by reference and cost a second round trip
ORDER = "order.npz"
RESULT = "result.npz"
ENDED = "ended.json"
REVOKED = "disabled_clients.json"  # where FLARE's server keeps the sites that the coordinator has revoked
RUNS = "foedus-runs"  # the folder of checkpoints, in the kit's own folder
STARTED = -1  # the number of the client state that `join` makes
