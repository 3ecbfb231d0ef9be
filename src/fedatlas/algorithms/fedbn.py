"""FedBN: the layers of batch norm stay with the client, everything else is averaged.

=======  ==============================================================================  ===================================
own      the client's batch-norm layers: scale, shift, running mean and variance         kept on the client
norms    the names of these layers' trainable tensors, sent with the model
=======  ==============================================================================  ===================================

    client: model received, with ``own`` in place of its batch-norm layers -> local training -> new ``own``

Source: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021. B10, C9. A new client has no ``own`` and begins with the
mean of the last cohort's, by rows. The server averages these layers only for such clients (it never sees them one by one). Without
batch norm this is FedAvg, bit for bit; group and layer norm keep no statistics and are averaged. The same for any other
algorithm is ``model.bn = "local"`` (`batch_norm.py`).
"""

from __future__ import annotations

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms.batch_norm import local_norms
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.weighting import Weighting


def fedbn(*, weights: Weighting = "samples") -> Algorithm:
    """FedAvg except for each client's own batch-norm layers: for inputs that are scaled or lit differently.

    w <- sum p_k w_k, except for each client's own batch-norm layers.
    """
    made = local_norms(fedavg(weights=weights))
    return made._replace(name="fedbn", card=made.card._replace(family="personalisation"))
