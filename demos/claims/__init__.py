"""The papers' claims, grouped by what they need: `CLAIMS` by their id, and what does not hold here.

`NOT_HERE` are claims that do not reproduce at this size, measured all the same. `NOT_MEASURED` are
those that would need another size of model or of training to be measured at all.
"""

from __future__ import annotations

from demos.claims import decoders, feed_forward, inside, training, xiong, zoo
from demos.claims.claim import Claim

_GROUPS = (xiong, feed_forward, decoders, zoo, training, inside)


def _number(claim: Claim) -> int:
    return int(claim.id[1:])


CLAIMS: dict[str, Claim] = {
    claim.id: claim for claim in sorted((c for group in _GROUPS for c in group.CLAIMS), key=_number)
}
NOT_HERE: dict[str, Claim] = {
    claim.id: claim for group in (xiong, inside) for claim in group.NOT_HERE
}
NOT_MEASURED = (
    (
        "Keel stands learning rates above 1e-2 where Post-LN diverges at 3e-4",
        "Chen and Wei 2026, Table 1",
        "with a rate that rises to 5e-2 in 200 steps, almost nothing diverges at this size",
    ),
    (
        "Post-LN, when it trains, ends better than Pre-LN",
        "Xiong et al. 2020, sec. 4; Liu et al. 2020",
        "that shows after long training only",
    ),
    (
        "With tanh in the place of a norm the gradient grows as a stretched exponential of depth",
        "Doshi et al. 2023, on DyT",
        "at 48 blocks its gradient ratio is 6 against Pre-LN's 5: too short to tell",
    ),
)
