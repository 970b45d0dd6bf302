// Dense projections: y[T, N] = x[T, K] w[N, K]^T (+ bias), weights in bf16 or packed.
#include "mma.cuh"
#include "shape.cuh"
#include "weights.cuh"

// A warp computes one column of up to ROWS rows: the path for row lengths that are no multiple of 8 and for float weights.
// Grid: (ceil(N / warps), ceil(T / ROWS)).
template <class Weight, class Out, int ROWS>
__device__ __forceinline__ void project(const bf16* x, const Weight w, const bf16* bias, Out* y, int rows, int n, int k) {
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, first = blockIdx.y * ROWS;
    if (col >= n) return;
    const int held = min(ROWS, rows - first);
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r] = 0.f;
    for (int i = lane; i < k; i += WARP) {
        const float weight = w.at(col, i);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (r < held) sums[r] += weight * f32(x[(size_t)(first + r) * k + i]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float total = warp_sum(sums[r]);
        if (lane == 0 && r < held) store(y + (size_t)(first + r) * n + col, total + (bias ? f32(bias[col]) : 0.f));
    }
}

extern "C" __global__ void linear_bf16(const bf16* x, const bf16* w, const bf16* bias, bf16* y, int rows, int n, int k) {
    take_turn();
    project<Bf16Weight, bf16, 8>(x, Bf16Weight{w, k}, bias, y, rows, n, k);
}
extern "C" __global__ void linear_bf16_f32(const bf16* x, const bf16* w, const bf16* bias, float* y, int rows, int n, int k) {
    take_turn();
    project<Bf16Weight, float, 8>(x, Bf16Weight{w, k}, bias, y, rows, n, k);
}
extern "C" __global__ void linear_f32_f32(const bf16* x, const float* w, const bf16* bias, float* y, int rows, int n, int k) {
    take_turn();
    project<F32Weight, float, 8>(x, F32Weight{w, k}, bias, y, rows, n, k);
}

// `parts` warps share a tile of 16 outputs and split K; CLUSTER blocks split it further.
// Grid: (CLUSTER * ceil(ceil(N / 16) / (8 / parts)), ceil(T / (8 NT)), batch).
template <int NT, int CLUSTER, class Weight>
__device__ __forceinline__ void project_mma(const bf16* x, const Weight& weight, const bf16* bias, void* y, const Shape& s) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    const int part = warp % s.parts, batch = blockIdx.z, first = blockIdx.y * 8 * NT;
    const int split = CLUSTER == 1 ? 0 : cluster_rank();
    const int tile = blockIdx.x / CLUSTER * (MMA_WARPS / s.parts) + warp / s.parts;
    using W = decltype(weight(0, 0, 0));
    Pool<W>& pool = pool_of<W>();
    admit_next();
    float acc[NT][4] = {};
    if (tile * 16 < s.n) {
        Tokens<NT> tokens;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const int row = first + n * 8 + g;
            tokens.row[n] = x + (size_t)batch * s.x_batch + token_row(s, min(row, s.rows - 1)) * s.x_stride;
        }
        const W w = weight(tile, batch, g);
        accumulate<W, NT, true>(pool, w, tokens, split * s.parts + part, CLUSTER * s.parts, acc);
    }
    reduce_warps<NT>(pool, acc, part, s.parts);
    reduce_cluster<NT, CLUSTER>(reinterpret_cast<float4*>(&pool), acc);
    if (part != 0 || split != 0 || tile * 16 >= s.n) return;
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
            store_result(y, bias, s, batch, first + n * 8 + 2 * q + c % 2, tile * 16 + g + c / 2 * 8, acc[n][c]);
}

#define LINEAR_BF16(NAME, NT, DEPTH, CLUSTER, BLOCKS, ATTRIBUTE)                                                                            \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(MMA_WARPS * WARP, BLOCKS) NAME(const bf16* x, const bf16* w, const bf16* bias, void* y, SHAPE_PARAMS) { \
        const auto weight = [=](int tile, int batch, int g) {                                                                               \
            const bf16* matrix = w + batch * w_batch;                                                                                       \
            return Bf16Rows<DEPTH>{matrix + (size_t)min(tile * 16 + g, n - 1) * k, matrix + (size_t)min(tile * 16 + g + 8, n - 1) * k, k};   \
        };                                                                                                                                  \
        project_mma<NT, CLUSTER>(x, weight, bias, y, SHAPE);                                                                                \
    }
LINEAR_BF16(linear_mma_bf16_1, 1, 3, 1, 3, )
LINEAR_BF16(linear_mma_bf16_1_many, 1, 2, 1, 3, )
LINEAR_BF16(linear_mma_bf16_2, 2, 2, 1, 3, )
LINEAR_BF16(linear_mma_bf16_2_pair, 2, 2, 2, 3, __cluster_dims__(2, 1, 1))
LINEAR_BF16(linear_mma_bf16_1_split, 1, 3, 4, 3, __cluster_dims__(4, 1, 1))
LINEAR_BF16(linear_mma_bf16_2_split, 2, 2, 4, 3, __cluster_dims__(4, 1, 1))

#define LINEAR_INT4(NAME, NT, BLOCKS)                                                                                                               \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS) NAME(const bf16* x, const u8* w, const bf16* bias, void* y, SHAPE_PARAMS) { \
        const size_t tile_row = (size_t)((k + 127) / 128) * INT4_TILE_BYTES;                                                                \
        project_mma<NT, 1>(x, [=](int tile, int, int) { return Int4Stream{w + tile * tile_row, k}; }, bias, y, SHAPE);                      \
    }
LINEAR_INT4(linear_mma_int4_1, 1, 3)
LINEAR_INT4(linear_mma_int4_2, 2, 1)
LINEAR_INT4(linear_mma_int4_4, 4, 1)

// Scales [ceil(N / block_rows), ceil(K / block_cols)] follow the tiles.
#define LINEAR_FP8(NAME, NT, BLOCKS)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS) \
        NAME(const bf16* x, const u8* w, const bf16* bias, void* y, SHAPE_PARAMS, const float* scales, int block_rows, int block_cols) {    \
        const size_t tile_row = (size_t)((k + 63) / 64) * FP8_TILE_BYTES;                                                                   \
        const auto weight = [=](int tile, int, int) {                                                                                       \
            const float* row = scales + (size_t)(tile * 16 / block_rows) * ((k + block_cols - 1) / block_cols);                             \
            return Fp8Stream{w + tile * tile_row, row, row, k, block_cols};                                                                 \
        };                                                                                                                                  \
        project_mma<NT, 1>(x, weight, bias, y, SHAPE);                                                                                      \
    }
LINEAR_FP8(linear_mma_fp8_1, 1, 3)
LINEAR_FP8(linear_mma_fp8_2, 2, 2)
LINEAR_FP8(linear_mma_fp8_4, 4, 1)
