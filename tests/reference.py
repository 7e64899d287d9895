"""Algorithm 1 in float64, sample by sample, with loops and no tricks: what the engine is compared with.

Nothing here is shared with the engine but the scalar proximal operators, which are certified on their own. Every other
update is solved from its definition by another route: least squares by a pseudo-inverse of the data instead of
moments, regularised weights by coordinate descent instead of an accelerated method, activations by a plain linear
solve for each sample.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ipdlam.fullbatch.orders import resolve_order
from ipdlam.prox import ACTIVATIONS


def tensor(values):
    return torch.from_numpy(np.ascontiguousarray(values))


class Reference:
    def __init__(
        self, model, loss, X, targets, *, inertia, proximity, penalty, growth, maximum, order, regularizers,
        weight=None, weight_proximity=None,
    ):  # fmt: skip
        linears = [m for m in model if isinstance(m, nn.Linear)]
        by_module = {a.module: a for a in ACTIVATIONS.values()}
        self.activations = [by_module[type(m)].from_module(m) for m in model if not isinstance(m, nn.Linear)]
        self.loss, self.L, self.N = loss, len(linears), len(X)
        self.X, self.y = X.double().numpy(), targets.double().numpy()
        self.s = np.ones(self.N) if weight is None else weight.double().numpy()
        self.alpha, self.beta, self.gamma = inertia
        self.delta, self.rho, self.growth, self.maximum = proximity, penalty, growth, maximum
        # Of W and of b, for each sample; as printed it is delta for all of them together.
        per_sample = None if weight_proximity is None else np.broadcast_to(weight_proximity, 2)
        self.delta_W, self.delta_b = (self.delta,) * 2 if per_sample is None else per_sample * self.s.sum()
        self.order = resolve_order(order, self.L)
        self.R = regularizers
        self.W = {l: linears[l - 1].weight.detach().double().numpy().copy() for l in range(1, self.L + 1)}
        self.b = {l: self.bias_of(linears[l - 1]) for l in range(1, self.L + 1)}
        self.biased = {l: linears[l - 1].bias is not None for l in range(1, self.L + 1)}
        self.z, self.a = {}, {0: self.X}
        for l in range(1, self.L + 1):
            self.z[l] = self.preactivation(l)
            if l < self.L:
                self.a[l] = self.sigma(l, self.z[l])
        self.old = {name: {l: v.copy() for l, v in getattr(self, name).items()} for name in "zaWb"}
        self.used_rho = penalty

    @staticmethod
    def bias_of(linear):
        return np.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().double().numpy().copy()

    def sigma(self, l, z):
        return self.activations[l - 1].value(tensor(z)).numpy()

    def preactivation(self, l):
        rows = [self.W[l] @ self.a[l - 1][i] + self.b[l] for i in range(self.N)]
        return np.array(rows)

    def hat(self, name, l, inertia):
        current, old = getattr(self, name)[l], self.old[name][l]
        return current + inertia * (current - old)

    def replace(self, name, l, new):
        self.old[name][l] = getattr(self, name)[l]
        getattr(self, name)[l] = new

    def update_z(self, l):
        P, z_hat = self.preactivation(l), self.hat("z", l, self.alpha)
        new = np.empty_like(P)
        for i in range(self.N):
            v = (P[i] + self.delta * z_hat[i]) / (1 + self.delta)
            if l == self.L:
                r = self.rho * (1 + self.delta)
                new[i] = self.loss.prox(tensor(self.y[i : i + 1]), tensor(v[None]), r).numpy()[0]
            else:
                new[i] = self.activations[l - 1].prox(tensor(self.a[l][i]), tensor(v), 1 + self.delta).numpy()
        self.replace("z", l, new)

    def update_a(self, l):
        W, b, a_hat = self.W[l + 1], self.b[l + 1], self.hat("a", l, self.gamma)
        sigma = self.sigma(l, self.z[l])
        new = np.empty_like(sigma)
        for i in range(self.N):
            right = sigma[i] + self.delta * a_hat[i] + W.T @ (self.z[l + 1][i] - b)
            new[i] = np.linalg.solve(W.T @ W + (1 + self.delta) * np.eye(W.shape[1]), right)
        self.replace("a", l, new)

    def update_W(self, l):
        A, Z, R = self.a[l - 1], self.z[l], self.R[l - 1]
        W_hat = self.hat("W", l, self.beta)
        root = np.sqrt(self.s)[:, None]
        # Stacked least squares: the samples, then the proximal term as further rows.
        design = np.vstack([root * A, np.sqrt(self.delta_W) * np.eye(A.shape[1])])
        goal = np.vstack([root * (Z - self.b[l]), np.sqrt(self.delta_W) * W_hat.T])
        if R is None:
            new = (np.linalg.pinv(design) @ goal).T
        else:
            scale = R.scale(self.rho, float(self.s.sum())) / self.rho
            H, B = design.T @ design, (design.T @ goal).T
            new = self.coordinate_descent(R, scale, H, B, self.W[l])
        self.replace("W", l, new)

    @staticmethod
    def coordinate_descent(R, scale, H, B, start):
        W = start.copy()
        for _ in range(20000):
            before = W.copy()
            for j in range(W.shape[1]):
                v = (B[:, j] - W @ H[:, j] + W[:, j] * H[j, j]) / H[j, j]
                W[:, j] = R.prox(tensor(v), H[j, j] / scale).numpy()
            if np.abs(W - before).max() <= 1e-15 * np.abs(W).max():
                break
        return W

    def update_b(self, l):
        if not self.biased[l]:
            return
        b_hat = self.hat("b", l, self.beta)
        total = self.delta_b * b_hat
        for i in range(self.N):
            total = total + self.s[i] * (self.z[l][i] - self.W[l] @ self.a[l - 1][i])
        self.replace("b", l, total / (self.s.sum() + self.delta_b))

    def step(self):
        self.used_rho = self.rho
        for kind, l in self.order:
            if kind == "z":
                self.update_z(l)
            elif kind == "a":
                self.update_a(l)
            else:
                self.update_W(l)
                self.update_b(l)
        self.rho = min(self.growth * self.rho, self.maximum)

    def linear_gap(self, l):
        return sum(self.s[i] * np.sum((self.z[l][i] - self.preactivation(l)[i]) ** 2) for i in range(self.N))

    def activation_gap(self, l):
        return sum(self.s[i] * np.sum((self.a[l][i] - self.sigma(l, self.z[l])[i]) ** 2) for i in range(self.N))

    def loss_value(self):
        return float(self.loss.value(tensor(self.y), tensor(self.z[self.L])).numpy() @ self.s)

    def regularization(self):
        total = 0.0
        for l, R in enumerate(self.R, start=1):
            if R is not None:
                total += R.scale(self.used_rho, float(self.s.sum())) * float(R.value(tensor(self.W[l])))
        return total

    def phi(self):
        gaps = sum(self.linear_gap(l) for l in range(1, self.L + 1)) + sum(
            self.activation_gap(l) for l in range(1, self.L)
        )
        return self.loss_value() + self.regularization() + 0.5 * self.used_rho * gaps

    def lyapunov(self):
        def change(name, weighted):
            layers = [l for l in getattr(self, name) if not (name == "a" and l == 0)]
            difference = {l: getattr(self, name)[l] - self.old[name][l] for l in layers}
            return sum(np.sum((self.s[:, None] if weighted else 1.0) * difference[l] ** 2) for l in layers)

        energy = self.delta * (self.alpha * change("z", True) + self.gamma * change("a", True))
        energy += self.beta * (self.delta_W * change("W", False) + self.delta_b * change("b", False))
        return self.phi() + 0.5 * self.used_rho * energy
