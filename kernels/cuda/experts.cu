// Routed experts: gate and up with the activation, down, and the weighted sum over a token's experts in order.
#include "weights.cuh"

__device__ __forceinline__ float activate(float gate, float up, int clamped, float alpha, float limit) {
    if (!clamped) return gate * sigmoid(gate) * up;
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return (up + 1.f) * gate * sigmoid(alpha * gate);
}

constexpr int ROWS = 8;

// h[pair, inter]: a warp computes one column of gate and of up for up to ROWS rows of an expert.
// Grid: (ceil(inter / warps), local experts).
template <class Weight>
__device__ __forceinline__ void gate_up(const bf16* x, const Weight w, const bf16* bias, const int* offsets, const int* pairs, bf16* h, int hidden,
                                        int inter, int topk, int clamped, float alpha, float limit) {
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, expert = blockIdx.y;
    if (col >= inter) return;
    const long long row = (long long)expert * 2 * inter + col;
    for (int first = offsets[expert]; first < offsets[expert + 1]; first += ROWS) {
        const int held = min(ROWS, offsets[expert + 1] - first);
        float gate[ROWS], up[ROWS];
        const bf16* rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            gate[r] = up[r] = 0.f;
            rows[r] = x + (size_t)(pairs[first + min(r, held - 1)] / topk) * hidden;
        }
        for (int i = lane; i < hidden; i += WARP) {
            const float g = w.at(row, i), u = w.at(row + inter, i);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float v = f32(rows[r][i]);
                gate[r] += g * v;
                up[r] += u * v;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float g = warp_sum(gate[r]), u = warp_sum(up[r]);
            if (lane == 0 && r < held) {
                if (bias) { g += f32(bias[row]); u += f32(bias[row + inter]); }
                h[(size_t)pairs[first + r] * inter + col] = to_bf16(activate(g, u, clamped, alpha, limit));
            }
        }
    }
}

// y[pair, hidden] in float. Grid: (ceil(hidden / warps), local experts).
template <class Weight>
__device__ __forceinline__ void down(const bf16* h, const Weight w, const bf16* bias, const int* offsets, const int* pairs, float* y, int hidden, int inter) {
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, expert = blockIdx.y;
    if (col >= hidden) return;
    const long long row = (long long)expert * hidden + col;
    for (int first = offsets[expert]; first < offsets[expert + 1]; first += ROWS) {
        const int held = min(ROWS, offsets[expert + 1] - first);
        float sums[ROWS];
        const bf16* rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            sums[r] = 0.f;
            rows[r] = h + (size_t)pairs[first + min(r, held - 1)] * inter;
        }
        for (int i = lane; i < inter; i += WARP) {
            const float v = w.at(row, i);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r] += v * f32(rows[r][i]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float total = warp_sum(sums[r]);
            if (lane == 0 && r < held) y[(size_t)pairs[first + r] * hidden + col] = total + (bias ? f32(bias[row]) : 0.f);
        }
    }
}

#define EXPERTS(NAME, WEIGHT, PARAMS, GATE_UP, DOWN)                                                                                           \
    extern "C" __global__ void experts_gate_up_##NAME(const bf16* x, PARAMS, const bf16* bias, const int* offsets, const int* pairs, bf16* h,   \
                                                      int hidden, int inter, int topk, int clamped, float alpha, float limit) {                \
        gate_up<WEIGHT>(x, GATE_UP, bias, offsets, pairs, h, hidden, inter, topk, clamped, alpha, limit);                                       \
    }                                                                                                                                          \
    extern "C" __global__ void experts_down_##NAME(const bf16* h, PARAMS, const bf16* bias, const int* offsets, const int* pairs, float* y,     \
                                                   int hidden, int inter) {                                                                     \
        down<WEIGHT>(h, DOWN, bias, offsets, pairs, y, hidden, inter);                                                                          \
    }
#define COMMA ,
EXPERTS(bf16, Bf16Weight, const bf16* w, (Bf16Weight{w, hidden}), (Bf16Weight{w, inter}))
EXPERTS(int4, Int4Weight, const u32* w COMMA const bf16* scales COMMA int group, (Int4Weight{w, scales, hidden, group}), (Int4Weight{w, scales, inter, group}))

// FP8 scales restart with every expert, so the expert's matrix is addressed on its own.
struct Fp8Experts {
    const u8* data;
    const float* scales;
    int cols, block_rows, block_cols, rows;
    __device__ __forceinline__ float at(long long row, int col) const {
        const long long expert = row / rows;
        const int scale_rows = (rows + block_rows - 1) / block_rows, scale_cols = (cols + block_cols - 1) / block_cols;
        const Fp8Weight w{data + expert * rows * cols, scales + expert * scale_rows * scale_cols, cols, block_rows, block_cols};
        return w.at(row % rows, col);
    }
};
EXPERTS(fp8, Fp8Experts, const u8* w COMMA const float* scales COMMA int block_rows COMMA int block_cols, (Fp8Experts{w, scales, hidden, block_rows, block_cols, 2 * inter}),
        (Fp8Experts{w, scales, inter, block_rows, block_cols, hidden}))

// y[T, hidden] = sum over k, in order, of weights[t, k] * pair result, for the experts held here; an id outside is skipped.
extern "C" __global__ void experts_sum(const float* pair_results, const int* ids, const float* weights, bf16* y, int hidden, int topk, int expert_start,
                                       int local_experts) {
    const int t = blockIdx.x;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = 0.f;
        for (int k = 0; k < topk; ++k) {
            const int e = ids[t * topk + k] - expert_start;
            if (e >= 0 && e < local_experts) sum += weights[t * topk + k] * pair_results[((size_t)t * topk + k) * hidden + i];
        }
        y[(size_t)t * hidden + i] = to_bf16(sum);
    }
}
