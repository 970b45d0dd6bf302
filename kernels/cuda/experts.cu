// Routed experts: the plain path, and the weighted sum over a token's experts in order.
#include "activation.cuh"

// Row lengths that are no multiple of 8: a warp a column and a pair at a time, in bf16. Grids as above with a warp a column.
extern "C" __global__ void experts_gate_up_plain(const bf16* x, const bf16* w, const bf16* bias, const int* ids, bf16* h, int hidden, int inter, int topk,
                                                 int pairs, int expert_start, int local_experts, int clamped, float alpha, float limit) {
    take_turn();
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (col >= inter) return;
    for (int pair = blockIdx.y; pair < pairs; pair += gridDim.y) {
        const int expert = ids[pair] - expert_start;
        if (expert < 0 || expert >= local_experts) continue;
        const bf16 *row = x + (size_t)(pair / topk) * hidden, *gate_row = w + ((size_t)expert * 2 * inter + col) * hidden, *up_row = gate_row + (size_t)inter * hidden;
        float gate = 0.f, up = 0.f;
        for (int i = lane; i < hidden; i += WARP) { gate += f32(gate_row[i]) * f32(row[i]); up += f32(up_row[i]) * f32(row[i]); }
        gate = warp_sum(gate), up = warp_sum(up);
        if (bias) { gate += f32(bias[(size_t)expert * 2 * inter + col]); up += f32(bias[(size_t)expert * 2 * inter + inter + col]); }
        if (lane == 0) h[(size_t)pair * inter + col] = to_bf16(activate(gate, up, clamped, alpha, limit));
    }
}
extern "C" __global__ void experts_down_plain(const bf16* h, const bf16* w, const bf16* bias, const int* ids, float* y, int hidden, int inter, int pairs,
                                              int expert_start, int local_experts) {
    take_turn();
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (col >= hidden) return;
    for (int pair = blockIdx.y; pair < pairs; pair += gridDim.y) {
        const int expert = ids[pair] - expert_start;
        if (expert < 0 || expert >= local_experts) continue;
        const bf16 *row = h + (size_t)pair * inter, *weight = w + ((size_t)expert * hidden + col) * inter;
        float sum = 0.f;
        for (int i = lane; i < inter; i += WARP) sum += f32(weight[i]) * f32(row[i]);
        sum = warp_sum(sum);
        if (lane == 0) y[(size_t)pair * hidden + col] = sum + (bias ? f32(bias[(size_t)expert * hidden + col]) : 0.f);
    }
}

// y[T, hidden] = sum over k, in order, of weights[t, k] * pair result, for the experts held here; an id outside is skipped. Grid: (T, chunks of hidden).
extern "C" __global__ void experts_sum(const float* pair_results, const int* ids, const float* weights, void* y, int hidden, int topk, int expert_start,
                                       int local_experts, int f32_out) {
    take_turn();
    const int t = blockIdx.x;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < hidden; i += gridDim.y * blockDim.x) {
        float sum = 0.f;
        for (int k = 0; k < topk; ++k) {
            const int e = ids[t * topk + k] - expert_start;
            if (e >= 0 && e < local_experts) sum += weights[t * topk + k] * pair_results[((size_t)t * topk + k) * hidden + i];
        }
        if (f32_out) ((float*)y)[(size_t)t * hidden + i] = sum;
        else ((bf16*)y)[(size_t)t * hidden + i] = to_bf16(sum);
    }
}
