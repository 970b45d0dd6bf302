// Routed experts over one storage format: gate and up with the activation, down, and the weighted sum over a token's experts in order.
//
// Weights of gate and up come in tiles of 8 columns: gate's 8 rows, then up's, so that one lane ends up with both sums of a column.
#pragma once
#include "activation.cuh"
#include "mma.cuh"
#include "shape.cuh"

// The rows of a block: pairs `first..last` of `list`, for the local expert; or, where `list` is null, pair `first` alone.
struct Work {
    int expert, first, last;
};

// What routers and lists say, past L1 where it is read ahead of the kernel's turn, while others run beside it.
template <bool EARLY>
__device__ __forceinline__ int said(const int* p) { return EARLY ? __ldcg(p) : *p; }

// One token: block row y is its y-th choice. More: block row y is the y-th unit of work, up to `unit` tokens of an expert (route.cu).
template <bool EARLY>
__device__ __forceinline__ Work work_of(int unit, const int* ids, const int* offsets, const int* active, int expert_start, int local_experts) {
    if (!offsets) {
        const int expert = said<EARLY>(ids + blockIdx.y) - expert_start;
        return expert >= 0 && expert < local_experts ? Work{expert, (int)blockIdx.y, (int)blockIdx.y + 1} : Work{0, 0, 0};
    }
    if ((int)blockIdx.y >= said<EARLY>(active)) return Work{0, 0, 0};
    const u32 named = said<EARLY>(active + 1 + blockIdx.y);
    const int expert = named & 0xffff, first = said<EARLY>(offsets + expert) + (int)(named >> 16) * unit;
    return Work{expert, first, min(first + unit, said<EARLY>(offsets + expert + 1))};
}

// Weights of an expert as a stream over a tile: `fused` tiles hold 8 rows of gate and 8 of up, others 16 rows.
template <int DEPTH>
struct Bf16Experts {
    using Bf16Stream = Bf16Rows<DEPTH>;
    const bf16* w;
    int rows, cols;
    template <bool FUSED>
    __device__ __forceinline__ Bf16Stream tile(int expert, int tile, int g) const {
        const bf16* matrix = w + (size_t)expert * rows * cols;
        const int low = FUSED ? min(tile * 8 + g, rows / 2 - 1) : min(tile * 16 + g, rows - 1);
        const int high = FUSED ? low + rows / 2 : min(tile * 16 + g + 8, rows - 1);
        return Bf16Stream{matrix + (size_t)low * cols, matrix + (size_t)high * cols, cols};
    }
};

struct Int4Experts {
    const u8* w;
    int rows, cols;
    template <bool FUSED>
    __device__ __forceinline__ Int4Stream tile(int expert, int tile, int) const {
        const int tiles = FUSED ? (rows / 2 + 7) / 8 : (rows + 15) / 16;
        return Int4Stream{w + ((size_t)expert * tiles + tile) * ((cols + 127) / 128) * INT4_TILE_BYTES, cols};
    }
};

// Scales [experts, parts, ceil(rows of a part / block_rows), ceil(cols / block_cols)], gate and up being parts.
struct Fp8Experts {
    const u8* w;
    const float* scales;
    int rows, cols, block_rows, block_cols;
    template <bool FUSED>
    __device__ __forceinline__ Fp8Stream tile(int expert, int tile, int) const {
        const int part_rows = FUSED ? rows / 2 : rows, tile_rows = FUSED ? 8 : 16;
        const int tiles = (part_rows + tile_rows - 1) / tile_rows;
        const int scale_rows = (part_rows + block_rows - 1) / block_rows, scale_cols = (cols + block_cols - 1) / block_cols;
        const float* low = scales + (((size_t)expert * (FUSED ? 2 : 1)) * scale_rows + tile * tile_rows / block_rows) * scale_cols;
        const float* high = FUSED ? low + (size_t)scale_rows * scale_cols : low;
        return Fp8Stream{w + ((size_t)expert * tiles + tile) * ((cols + 63) / 64) * FP8_TILE_BYTES, low, high, cols, block_cols};
    }
};

// What a lane writes of gate and up: column `col` of h[pair, inter], for tokens `first ..` of the work. LISTED: `list` is there.
template <int NT, bool LISTED>
__device__ __forceinline__ void end_gate_up(float (&acc)[NT][4], const bf16* bias, int expert, int first, int last, const int* list, bf16* h, int inter, int col, int q,
                                            int clamped, float alpha, float limit) {
    const float gate_bias = bias ? f32(bias[(size_t)expert * 2 * inter + col]) : 0.f;
    const float up_bias = bias ? f32(bias[(size_t)expert * 2 * inter + inter + col]) : 0.f;
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int i = first + n * 8 + 2 * q + c;
            if (i >= last) continue;
            const int pair = LISTED || list ? list[i] : i;
            h[(size_t)pair * inter + col] = to_bf16(activate(acc[n][c] + gate_bias, acc[n][2 + c] + up_bias, clamped, alpha, limit));
        }
}

// What a lane writes of down: its rows of y[pair, hidden], for tokens `first ..` of the work.
template <int NT>
__device__ __forceinline__ void end_down(const float (&acc)[NT][4], const bf16* bias, const Work& work, int first, const int* list, float* y, int hidden, int tile, int g, int q) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int i = first + n * 8 + 2 * q + c % 2, row = tile * 16 + g + c / 2 * 8;
            if (i < work.last && row < hidden) y[(size_t)list[i] * hidden + row] = acc[n][c] + (bias ? f32(bias[(size_t)work.expert * hidden + row]) : 0.f);
        }
}

// h[pair, inter]. Grid: (ceil(ceil(inter / 8) / (8 / parts)), choices or experts).
template <int NT, class Experts>
__device__ __forceinline__ void gate_up(const bf16* x, const Experts& experts, const bf16* bias, const Work& work, const int* list, bf16* h, int topk, int parts,
                                        int clamped, float alpha, float limit) {
    using W = decltype(experts.template tile<true>(0, 0, 0));
    Pool<W>& pool = pool_of<W>();
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4, part = warp % parts;
    const int tile = blockIdx.x * (MMA_WARPS / parts) + warp / parts, hidden = experts.cols, inter = experts.rows / 2, col = tile * 8 + g;
    const bool held = tile * 8 < inter;
    for (int first = work.first; first < work.last; first += 8 * NT) {
        float acc[NT][4] = {};
        if (held) {
            Tokens<NT> tokens;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const int i = min(first + n * 8 + g, work.last - 1);
                tokens.row[n] = x + (size_t)((list ? list[i] : i) / topk) * hidden;
            }
            const auto w = experts.template tile<true>(work.expert, tile, g);
            accumulate<W, NT>(pool, w, tokens, part, parts, acc);
        }
        reduce_warps<NT>(pool, acc, part, parts);
        if (part != 0 || !held || col >= inter) continue;
        end_gate_up<NT, false>(acc, bias, work.expert, first, work.last, list, h, inter, col, q, clamped, alpha, limit);
    }
}

// y[pair, hidden] in float. Grid: (ceil(ceil(hidden / 16) / (8 / parts)), experts). Gate and up admit this kernel after their own turn has come, so
// choices and lists stand when it begins, and weights are asked for ahead of its turn.
template <int NT, class Experts>
__device__ __forceinline__ void down(const bf16* h, const Experts& experts, const bf16* bias, const Work& work, const int* list, float* y, int parts) {
    using W = decltype(experts.template tile<false>(0, 0, 0));
    Pool<W>& pool = pool_of<W>();
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4, part = warp % parts;
    const int tile = blockIdx.x * (MMA_WARPS / parts) + warp / parts, hidden = experts.rows, inter = experts.cols;
    const bool held = tile * 16 < hidden;
    if (!held || work.first >= work.last) await_previous();
    for (int first = work.first; first < work.last; first += 8 * NT) {
        float acc[NT][4] = {};
        if (held) {
            Tokens<NT> tokens;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                tokens.row[n] = h + (size_t)said<true>(list + min(first + n * 8 + g, work.last - 1)) * inter;
            }
            const auto w = experts.template tile<false>(work.expert, tile, g);
            accumulate<W, NT, true>(pool, w, tokens, part, parts, acc);
        }
        reduce_warps<NT>(pool, acc, part, parts);
        if (part != 0 || !held) continue;
        end_down<NT>(acc, bias, work, first, list, y, hidden, tile, g, q);
    }
}

// One token: a warp a choice (looping), then the choices' weighted sum in order. The blocks of a cluster share the columns. Grid: CLUSTER *
// ceil(hidden / 16). Weights ahead of its turn, as `down`.
template <int CLUSTER, class Experts>
__device__ __forceinline__ void down_single(const bf16* h, const Experts& experts, const bf16* bias, const int* ids, const float* weights, void* y, int topk,
                                            int expert_start, int local_experts, int f32_out) {
    using W = decltype(experts.template tile<false>(0, 0, 0));
    Pool<W>& pool = pool_of<W>();
    float4* partial = reinterpret_cast<float4*>(&pool);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4, hidden = experts.rows, inter = experts.cols;
    const int tile = blockIdx.x / CLUSTER, split = CLUSTER == 1 ? 0 : cluster_rank();
    float total[1][4] = {};
    for (int base = 0; base < topk; base += MMA_WARPS) {
        const int pair = base + warp, expert = pair < topk ? said<true>(ids + pair) - expert_start : -1;
        float acc[1][4] = {};
        if (expert < 0 || expert >= local_experts) await_previous();
        if (expert >= 0 && expert < local_experts) {
            Tokens<1> tokens;
            tokens.row[0] = h + (size_t)pair * inter;
            const auto w = experts.template tile<false>(expert, tile, g);
            accumulate<W, 1, true>(pool, w, tokens, split, CLUSTER, acc);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int row = min(tile * 16 + g + c / 2 * 8, hidden - 1);
                acc[0][c] = weights[pair] * (acc[0][c] + (bias && split == 0 ? f32(bias[(size_t)expert * hidden + row]) : 0.f));
            }
        }
        __syncthreads();
        partial[warp * WARP + lane] = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
        __syncthreads();
        if (warp == 0)
            for (int p = 0; p < MMA_WARPS; ++p) total[0][0] += partial[p * WARP + lane].x, total[0][2] += partial[p * WARP + lane].z;
        __syncthreads();
    }
    reduce_cluster<1, CLUSTER>(partial, total);
    if (warp != 0 || q != 0 || split != 0) return;
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
        const int row = tile * 16 + g + c / 2 * 8;
        if (row >= hidden) continue;
        if (f32_out) ((float*)y)[row] = total[0][c];
        else ((bf16*)y)[row] = to_bf16(total[0][c]);
    }
}

#define GATE_UP(NAME, NT, BLOCKS, PARAMS, EXPERTS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS)                                                                    \
        experts_gate_up_##NAME##_##NT(const bf16* x, PARAMS, const bf16* bias, const int* ids, const int* offsets, const int* list, const int* active, \
                                      bf16* h, int hidden, int inter, int topk, int expert_start, int local_experts, int parts, int clamped, \
                                      float alpha, float limit) { take_turn_first();                                                         \
        const int rows = 2 * inter, cols = hidden;                                                                                            \
        gate_up<NT>(x, EXPERTS, bias, work_of<false>(8 * NT, ids, offsets, active, expert_start, local_experts), list, h, topk, parts, clamped, alpha, limit); \
    }
#define DOWN(NAME, NT, BLOCKS, PARAMS, EXPERTS)                                                                                               \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS)                                                                    \
        experts_down_##NAME##_##NT(const bf16* h, PARAMS, const bf16* bias, const int* offsets, const int* list, const int* active, float* y,  \
                                   int hidden, int inter, int local_experts, int parts) { admit_next();                                      \
        const int rows = hidden, cols = inter;                                                                                                \
        down<NT>(h, EXPERTS, bias, work_of<true>(8 * NT, nullptr, offsets, active, 0, local_experts), list, y, parts);                                       \
    }
#define SINGLE(NAME, FORM, CLUSTER, ATTRIBUTE, BLOCKS, PARAMS, EXPERTS)                                                                       \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(MMA_WARPS * WARP, BLOCKS)                                                          \
        experts_down_##NAME##_##FORM(const bf16* h, PARAMS, const bf16* bias, const int* ids, const float* weights, void* y, int hidden,       \
                                     int inter, int topk, int expert_start, int local_experts, int f32_out) { admit_next();                  \
        const int rows = hidden, cols = inter;                                                                                                \
        down_single<CLUSTER>(h, EXPERTS, bias, ids, weights, y, topk, expert_start, local_experts, f32_out);                                   \
    }
#define COMMA ,
#define BF16_PARAMS const bf16* w
#define BF16_EXPERTS (Bf16Experts<2>{w, rows, cols})
#define BF16_EXPERTS_DEEP (Bf16Experts<3>{w, rows, cols})
#define INT4_PARAMS const u8* w
#define INT4_EXPERTS (Int4Experts{w, rows, cols})
#define FP8_PARAMS const u8 *w COMMA const float *scales COMMA int block_rows COMMA int block_cols
#define FP8_EXPERTS (Fp8Experts{w, scales, rows, cols, block_rows, block_cols})
