"""The block updates of Algorithm 1, each written once; the layer is the caller's argument.

Rows are samples: ``z_l ~ a_(l-1) W_l^T + b_l`` and ``a_l ~ sigma_l(z_l)``. ``alpha``, ``beta``, ``gamma`` are the
inertias of z, W and b, a; ``delta`` is the proximity; ``rho`` the penalty. Updates of z and a overwrite the previous
generation, which nothing needs after the inertial point is formed, so an iteration allocates no large array.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ipdlam.fullbatch.moments import Moments
from ipdlam.fullbatch.proximal_gradient import accelerated_proximal_gradient, tolerance_for
from ipdlam.network.linalg import aligned_empty, row_blocks
from ipdlam.prox.base import Activation, Loss, Regularizer


def inertial_point(current: Tensor, previous: Tensor, inertia: float) -> Tensor:
    """``x_hat = x + inertia (x - x_previous)``: lines 1 to 3 of Algorithm 1."""
    return torch.lerp(previous, current, 1.0 + inertia)


def aim_z(P: Tensor, z: Tensor, z_previous: Tensor, alpha: float, delta: float) -> Tensor:
    """``V = (P + delta z_hat) / (1 + delta)``, where lines 4 and 5 take the prox; ``P = a_(l-1) W_l^T + b_l``.

    The result replaces ``z_previous``.
    """
    for rows in row_blocks(z):
        z_hat = torch.lerp(z_previous[rows], z[rows], 1.0 + alpha, out=z_previous[rows])
        z_hat.lerp_(P[rows], 1.0 / (1.0 + delta))
    return z_previous


def update_hidden_z(activation: Activation, a: Tensor, V: Tensor, delta: float) -> Tensor:
    """``argmin_z ||a - sigma(z)||^2 + (1 + delta) ||z - V||^2``: line 4. The result replaces ``V``."""
    for rows in row_blocks(V):
        V[rows] = activation._prox(a[rows], V[rows], 1.0 + delta)
    return V


def update_output_z(loss: Loss, targets: Tensor, V: Tensor, rho: float, delta: float) -> Tensor:
    """``argmin_z L(y, z) + (rho (1 + delta) / 2) ||z - V||^2``: line 5. The result replaces ``V``."""
    return V.copy_(loss._prox(targets, V, rho * (1.0 + delta)))


def update_W(
    moments: Moments,
    W: Tensor,
    W_previous: Tensor,
    b: Tensor | None,
    beta: float,
    delta: float,
    rho: float,
    regularizer: Regularizer | None,
    known: Tensor | None,
) -> Tensor:
    """``argmin_W R(W) + (rho / 2) (||Z - A W^T - 1 b^T||^2 + delta ||W - W_hat||^2)``: line 6.

    Without ``R``: ``W = (C + delta W_hat) (G + delta I)^-1`` with ``G = A^T A`` and ``C = Z^T A - b (1^T A)``; for
    ``delta = 0`` the solution of minimum norm, which keeps what ``known``, weights that were solved for before, have
    along directions that rounding hides. The quadratic part of ``R`` joins ``delta`` on the diagonal; the rest is
    solved for iteratively.
    """
    B = moments.ZtA.clone() if b is None else torch.addr(moments.ZtA, b.double(), moments.At1, alpha=-1.0)
    if delta > 0.0:
        B.add_(inertial_point(W.double(), W_previous.double(), beta), alpha=delta)
    if regularizer is None:
        return moments.AtA.solve(B, delta, known).to(W.dtype)
    scale = regularizer.scale_over_penalty(rho, moments.n)
    shift = delta + scale * regularizer.curvature
    if regularizer.is_quadratic:
        return moments.AtA.solve(B, shift, known).to(W.dtype)
    return accelerated_proximal_gradient(
        moments.AtA.shifted(shift),
        B,
        lambda v, r: regularizer._prox_of_rest(v, r / scale),
        start=W.double(),
        tolerance=tolerance_for(W.dtype),
        name=moments.AtA.name,
    ).to(W.dtype)


def update_b(moments: Moments, W: Tensor, b: Tensor, b_previous: Tensor, beta: float, delta: float) -> Tensor:
    """``argmin_b ||Z - A W^T - 1 b^T||^2 + delta ||b - b_hat||^2``: line 6, with the new ``W``.

    It is ``(Z^T 1 - W A^T 1 + delta b_hat) / (N + delta)``.
    """
    b_hat = inertial_point(b.double(), b_previous.double(), beta)
    total = moments.Zt1 - W.double() @ moments.At1 + delta * b_hat
    return (total / (moments.n + delta)).to(b.dtype)


def update_a(
    activation: Activation,
    z: Tensor,
    a: Tensor,
    a_previous: Tensor,
    z_next: Tensor,
    W: Tensor,
    b: Tensor | None,
    K: Tensor,
    gamma: float,
    delta: float,
) -> Tensor:
    """``argmin_a ||a - sigma(z)||^2 + ||z_next - a W^T - b||^2 + delta ||a - a_hat||^2``: line 7.

    ``W`` and ``b`` are those of the next layer. With ``a0 = (sigma(z) + delta a_hat) / (1 + delta)`` it is
    ``a0 + (z_next - b - a0 W^T) K``, where ``K = W (W^T W + (1 + delta) I)^-1`` is :func:`ipdlam.network.linalg.gain`.
    The result replaces ``a_previous``.
    """
    for rows in row_blocks(a):
        a_hat = torch.lerp(a_previous[rows], a[rows], 1.0 + gamma, out=a_previous[rows])
        a_hat.lerp_(activation.value(z[rows]), 1.0 / (1.0 + delta))
    a0 = a_previous
    residual = aligned_empty(z_next.shape[0], z_next.shape[1], z_next.dtype, z_next.device)
    torch.sub(z_next, 0.0 if b is None else b, out=residual)
    residual.addmm_(a0, W.mT, alpha=-1.0)
    return a0.addmm_(residual, K)
