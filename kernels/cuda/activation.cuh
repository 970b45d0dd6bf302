// The gated activations of dense and routed MLPs.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float activate(float gate, float up, int clamped, float alpha, float limit) {
    if (!clamped) return gate * sigmoid(gate) * up;
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return (up + 1.f) * gate * sigmoid(alpha * gate);
}
