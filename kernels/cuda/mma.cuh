// Weights times a few token rows on the tensor cores, weights as the 16-row operand so that up to 8 tokens cost no more than one.
//
// The contracted index may run in any order as long as both operands agree, so each lane reads 16 consecutive bytes of a weight row and the
// same columns of a token row, and no operand passes through shared memory. Weights are read once, past L1; token rows stay in it.
#pragma once
#include "common.cuh"

constexpr int MMA_WARPS = 8;
// Steps of a warp in shared memory, `STAGES` of `SIZE` bytes of its stream: one that is read and the others under way. Copies in flight cost no
// registers, so that few warps suffice to keep the memory busy.
template <class W>
struct Pool {
    uint4 stages[MMA_WARPS][W::STAGES * W::SIZE / 16];
};

// Static where that is allowed, else dynamic.
template <class W>
__device__ __forceinline__ Pool<W>& pool_of() {
    if constexpr (sizeof(Pool<W>) <= 48 << 10) {
        __shared__ Pool<W> pool;
        return pool;
    } else {
        extern __shared__ __align__(128) u8 room[];
        return *reinterpret_cast<Pool<W>*>(room);
    }
}

// Copies 16 bytes past L1; done after the copying thread's wait.
__device__ __forceinline__ void copy16(uint4* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}
__device__ __forceinline__ uint4 zero16() { return make_uint4(0, 0, 0, 0); }

// c[16, 8] += a[16, 16] b[16, 8]. Lane l: g = l / 4, q = l % 4; c holds rows g (c0, c1) and g + 8 (c2, c3) of columns 2q and 2q + 1.
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Token rows of a lane, one for each 8-token tile. Where a tile has fewer tokens the row of another one stands in: a column of the product
// depends on its own token alone, and nobody reads that one. RAGGED: columns from `cols` on count as zero.
template <int NT>
struct Tokens {
    const bf16* row[NT];
    template <bool RAGGED>
    __device__ __forceinline__ uint4 at(int tile, int col, int cols) const {
        if (RAGGED && col >= cols) return zero16();
        return *reinterpret_cast<const uint4*>(row[tile] + col);
    }
};

// bf16 rows as checkpoints store them; the row length is a multiple of 8. A step is 64 columns: a whole line of memory of every row, which an H200
// reads faster than halves of lines (2026-11-30: 16 rows of 2112 x 7168 in 13.5 us instead of 16.2, of 163840 x 7168 in 580 instead of 680).
template <int DEPTH>
struct Bf16Rows {
    static constexpr int STEP = 64, PIECES = 2, STAGES = DEPTH, SIZE = 2048;
    // Column of a lane's piece of a token row.
    __device__ __forceinline__ static int column(int step, int piece) { return step * STEP + piece * 32 + threadIdx.x % 4 * 8; }
    struct Raw { uint4 low[2], high[2]; };
    const bf16 *low, *high;
    int cols;
    __device__ __forceinline__ void issue(uint4* stage, int step) const {
        uint4* at = stage + threadIdx.x % WARP;
#pragma unroll
        for (int p = 0; p < PIECES; ++p, at += 2 * WARP) {
            const int col = column(step, p);
            if (col >= cols) { at[0] = zero16(), at[WARP] = zero16(); continue; }
            copy16(at, low + col);
            copy16(at + WARP, high + col);
        }
    }
    __device__ __forceinline__ Raw read(const uint4* stage) const {
        stage += threadIdx.x % WARP;
        return Raw{{stage[0], stage[2 * WARP]}, {stage[WARP], stage[3 * WARP]}};
    }
    template <int NT, class Piece>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Piece& piece, float (&acc)[NT][4]) const {
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 v = piece(n, p);
                mma(acc[n], w.low[p].x, w.high[p].x, w.low[p].y, w.high[p].y, v.x, v.y);
                mma(acc[n], w.low[p].z, w.high[p].z, w.low[p].w, w.high[p].w, v.z, v.w);
            }
    }
};

// A lane's sums of rows g and g + 8, each times the scale of its row.
__device__ __forceinline__ void add_scaled(float (&acc)[4], const float (&sum)[4], float low_scale, float high_scale) {
    acc[0] += low_scale * sum[0];
    acc[1] += low_scale * sum[1];
    acc[2] += high_scale * sum[2];
    acc[3] += high_scale * sum[3];
}

__device__ __forceinline__ u32 pair(__nv_bfloat162 v) { return *reinterpret_cast<u32*>(&v); }
__device__ __forceinline__ __nv_bfloat162 pair(u32 v) { return *reinterpret_cast<__nv_bfloat162*>(&v); }

// -136 twice in bf16: takes off the 128 that a nibble is given, and the 8 that is stored on top.
constexpr u32 INT4_OFFSET = 0xc308c308u;
// Nibbles j and j + 4 of a word as two bf16, each 128 greater: exact, since 128 to 143 are. `(word & mask) | magic` as one instruction, which the
// compiler makes two of.
__device__ __forceinline__ u32 int4_raised(u32 word, int j) {
    u32 raised;
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(raised) : "r"(word >> (4 * j)), "r"(0x43004300u));
    return raised;
}
// The same as -8 to 7. One addition a pair of weights, whatever the tokens are; taking the offset off in the product instead would double the
// products, which already fill the tensor cores where the memory is busy.
__device__ __forceinline__ u32 int4_pair(u32 word, int j) { return pair(__hadd2(pair(int4_raised(word, j)), pair(INT4_OFFSET))); }

// Scale of the i-th group of 32 columns: four bf16 of a row in two words.
__device__ __forceinline__ float int4_scale(const uint2& scales, int i) {
    const u32 word = i < 2 ? scales.x : scales.y;
    return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
}

// Packed 4-bit weights, tiles of 16 rows by 128 columns (INT4_TILE_BYTES each): a lane's 16 bytes of row g, then of row g + 8, then scales
// [16 rows, 4 groups]. Word i of a lane holds columns 32 i + 8 q .. + 8; the integers enter the product and the scale of a group
// multiplies its sum, in float. A step is a tile.
constexpr int INT4_TILE_BYTES = 1152;
struct Int4Stream {
    static constexpr int STEP = 128, PIECES = 4, STAGES = 5, SIZE = 1152;
    __device__ __forceinline__ static int column(int step, int piece) { return step * STEP + 32 * piece + threadIdx.x % 4 * 8; }
    struct Raw { uint4 low, high; uint2 low_scale, high_scale; };
    const u8* tile;
    int cols;
    __device__ __forceinline__ void issue(uint4* stage, int step) const {
        const int lane = threadIdx.x % WARP;
        const uint4* from = reinterpret_cast<const uint4*>(tile + (size_t)step * INT4_TILE_BYTES);
        copy16(stage + lane, from + lane);
        copy16(stage + WARP + lane, from + WARP + lane);
        if (lane < 8) copy16(stage + 2 * WARP + lane, from + 2 * WARP + lane);
    }
    __device__ __forceinline__ Raw read(const uint4* stage) const {
        const int lane = threadIdx.x % WARP;
        const uint2* scales = reinterpret_cast<const uint2*>(stage + 2 * WARP);
        return Raw{stage[lane], stage[WARP + lane], scales[lane / 4], scales[8 + lane / 4]};
    }
    template <int NT, class Piece>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Piece& piece, float (&acc)[NT][4]) const {
        const u32 low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u32 a[4], b[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) { a[j] = int4_pair(low[i], j); b[j] = int4_pair(high[i], j); }
            const float low_scale = int4_scale(w.low_scale, i), high_scale = int4_scale(w.high_scale, i);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 v = piece(n, i);
                float sum[4] = {0.f, 0.f, 0.f, 0.f};
                mma(sum, a[0], b[0], a[1], b[1], v.x, v.y);
                mma(sum, a[2], b[2], a[3], b[3], v.z, v.w);
                add_scaled(acc[n], sum, low_scale, high_scale);
            }
        }
    }
};

// Two e4m3 bytes, in the high halves of a word's 16-bit halves, as bf16: the bits land in bf16's exponent and mantissa, 2^120 too small.
__device__ __forceinline__ u32 fp8_pair(u32 halves) {
    const u32 bits = (halves & 0x80008000u) | ((halves >> 4) & 0x07f007f0u);
    return pair(__hmul2(pair(bits), pair(0x7b807b80u)));
}

// Packed FP8 e4m3, tiles of 16 rows by 64 columns: a lane's 16 bytes of row g, then of row g + 8; in each word the middle bytes are swapped.
// Scales are per block of rows x columns, in float; a step is a tile and lies in one block.
constexpr int FP8_TILE_BYTES = 1024;
struct Fp8Stream {
    static constexpr int STEP = 64, PIECES = 2, STAGES = 5, SIZE = 1024;
    __device__ __forceinline__ static int column(int step, int piece) { return step * STEP + threadIdx.x % 4 * 16 + piece * 8; }
    struct Raw { uint4 low, high; };
    const u8* tile;
    const float *low_scales, *high_scales;
    int cols, block_cols;
    __device__ __forceinline__ void issue(uint4* stage, int step) const {
        const int lane = threadIdx.x % WARP;
        const uint4* from = reinterpret_cast<const uint4*>(tile + (size_t)step * FP8_TILE_BYTES);
        copy16(stage + lane, from + lane);
        copy16(stage + WARP + lane, from + WARP + lane);
    }
    __device__ __forceinline__ Raw read(const uint4* stage) const { return Raw{stage[threadIdx.x % WARP], stage[WARP + threadIdx.x % WARP]}; }
    template <int NT, class Piece>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Piece& piece, float (&acc)[NT][4]) const {
        const u32 low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
        const int block = step * STEP / block_cols;
        const float low_scale = low_scales[block], high_scale = high_scales[block];
        float sum[NT][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 a[4], b[4];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                a[2 * j] = fp8_pair(low[2 * half + j] << 8);
                a[2 * j + 1] = fp8_pair(low[2 * half + j]);
                b[2 * j] = fp8_pair(high[2 * half + j] << 8);
                b[2 * j + 1] = fp8_pair(high[2 * half + j]);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 v = piece(n, half);
                mma(sum[n], a[0], b[0], a[1], b[1], v.x, v.y);
                mma(sum[n], a[2], b[2], a[3], b[3], v.z, v.w);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            add_scaled(acc[n], sum[n], low_scale, high_scale);
        }
    }
};

// Steps that token rows are asked for ahead, where there is one tile of them.
constexpr int TOKENS_AHEAD = 2;
// Steps first, first + stride, .. of the columns through the warp's stages. The last step may be ragged. EARLY: weights are asked for before the
// kernel's turn, which then comes.
template <class W, int NT, bool EARLY = false>
__device__ __forceinline__ void accumulate(Pool<W>& pool, const W& w, const Tokens<NT>& x, int first, int stride, float (&acc)[NT][4]) {
    uint4* stages = pool.stages[threadIdx.x / WARP];
    constexpr int STAGE = W::SIZE / 16, DEPTH = W::STAGES;
    const int whole = w.cols / W::STEP, steps = (w.cols + W::STEP - 1) / W::STEP;
    int ahead = first, to = 0;
#pragma unroll
    for (int u = 0; u < DEPTH - 1; ++u) {
        if (ahead < steps) w.issue(stages + u * STAGE, ahead);
        close_copies();
        ahead += stride;
    }
    if (EARLY) await_previous();
    to = DEPTH - 1;
    int from = 0;
    // One tile of tokens in few pieces: those of the next steps are asked for ahead. More would take registers that blocks need.
    constexpr int AHEAD = NT == 1 && W::PIECES < 4 ? TOKENS_AHEAD : 0;
    uint4 next[AHEAD + 1][W::PIECES];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
        if (first + a * stride < steps)
#pragma unroll
            for (int i = 0; i < W::PIECES; ++i) next[a][i] = x.template at<true>(0, W::column(first + a * stride, i), w.cols);
    for (int step = first; step < steps; step += stride) {
        uint4 mine[W::PIECES];
        if (AHEAD) {
#pragma unroll
            for (int i = 0; i < W::PIECES; ++i) {
                mine[i] = next[0][i];
#pragma unroll
                for (int a = 1; a < AHEAD; ++a) next[a - 1][i] = next[a][i];
            }
            if (step + AHEAD * stride < steps)
#pragma unroll
                for (int i = 0; i < W::PIECES; ++i) next[AHEAD - 1][i] = x.template at<true>(0, W::column(step + AHEAD * stride, i), w.cols);
        }
        await_copies<DEPTH - 2>();
        const typename W::Raw now = w.read(stages + from * STAGE);
        if (ahead < steps) w.issue(stages + to * STAGE, ahead);
        close_copies();
        ahead += stride;
        from = from + 1 == DEPTH ? 0 : from + 1;
        to = to + 1 == DEPTH ? 0 : to + 1;
        if (AHEAD) w.template multiply<NT>(now, step, [&](int, int i) { return mine[i]; }, acc);
        else if (step < whole) w.template multiply<NT>(now, step, [&](int n, int i) { return x.template at<false>(n, W::column(step, i), w.cols); }, acc);
        else w.template multiply<NT>(now, step, [&](int n, int i) { return x.template at<true>(n, W::column(step, i), w.cols); }, acc);
    }
}

// Adds the sums of the `parts` warps that share a tile, in warp order; the first of them ends up with the total.
template <int NT, class W>
__device__ __forceinline__ void reduce_warps(Pool<W>& pool, float (&acc)[NT][4], int part, int parts) {
    if (parts == 1) return;
    float4* partial = reinterpret_cast<float4*>(&pool);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // No warp reads its stages any more.
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; ++n) partial[(warp * NT + n) * WARP + lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    __syncthreads();
    if (part == 0)
        for (int p = 1; p < parts; ++p)
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float4 v = partial[((warp + p) * NT + n) * WARP + lane];
                acc[n][0] += v.x, acc[n][1] += v.y, acc[n][2] += v.z, acc[n][3] += v.w;
            }
    __syncthreads();
}
