"""The same algorithm with whole-array temporaries, the way it is usually written: what chunking is measured against.

Order reverse, ReLU, squared loss on one-hot labels, no regulariser. Every expression is evaluated for all samples at
once, and the objective is computed after the iteration.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class WholeArrayIPDLAM:
    """Algorithm 1 on arrays of all samples; one generation of temporaries for every operation."""

    def __init__(
        self, W: list[Tensor], b: list[Tensor], X: Tensor, Y: Tensor, inertia: float, delta: float, rho: float
    ) -> None:
        self.X, self.Y, self.inertia, self.delta, self.rho = X, Y, inertia, delta, rho
        self.W, self.b, self.L = W, b, len(W)
        self.a, self.z = [X], []
        for l in range(self.L):
            self.z.append(self.a[l] @ W[l].T + b[l])
            if l < self.L - 1:
                self.a.append(torch.relu(self.z[l]))
        self.old = {"z": list(self.z), "a": list(self.a), "W": list(W), "b": list(b)}

    def hat(self, name: str, l: int) -> Tensor:
        current = getattr(self, name)[l]
        return current + self.inertia * (current - self.old[name][l])

    def replace(self, name: str, l: int, new: Tensor) -> None:
        self.old[name][l] = getattr(self, name)[l]
        getattr(self, name)[l] = new

    def step(self) -> float:
        """One iteration; returns Phi."""
        delta, N = self.delta, len(self.X)
        for l in reversed(range(self.L)):
            v = (self.a[l] @ self.W[l].T + self.b[l] + delta * self.hat("z", l)) / (1 + delta)
            if l == self.L - 1:
                r = self.rho * (1 + delta)
                self.replace("z", l, (self.Y + r * v) / (1 + r))
            else:
                r = 1 + delta
                w = self.a[l + 1]
                kappa = math.sqrt(1 + 1 / r) - 1
                active = torch.relu((w + r * v) / (1 + r))
                self.replace("z", l, torch.where(v >= -kappa * torch.relu(w), active, v))
        for l in reversed(range(self.L)):
            A, Z = self.a[l], self.z[l]
            G = (A.T @ A).double() + delta * torch.eye(A.shape[1], dtype=torch.float64)
            C = ((Z - self.b[l]).T @ A).double() + delta * self.hat("W", l).double()
            W = torch.cholesky_solve(C.T, torch.linalg.cholesky(G)).T.float()
            self.replace("W", l, W)
            self.replace("b", l, ((Z - A @ W.T).sum(0) + delta * self.hat("b", l)) / (N + delta))
        for l in reversed(range(1, self.L)):
            W = self.W[l]
            right = torch.relu(self.z[l - 1]) + delta * self.hat("a", l) + (self.z[l] - self.b[l]) @ W
            M = W.T @ W + (1 + delta) * torch.eye(W.shape[1])
            self.replace("a", l, right @ torch.linalg.inv(M))
        return self.objective()

    def objective(self) -> float:
        loss = 0.5 * float((self.z[-1] - self.Y).square().sum())
        linear = sum(float((self.z[l] - self.a[l] @ self.W[l].T - self.b[l]).square().sum()) for l in range(self.L))
        active = sum(float((self.a[l + 1] - torch.relu(self.z[l])).square().sum()) for l in range(self.L - 1))
        return loss + 0.5 * self.rho * (linear + active)
