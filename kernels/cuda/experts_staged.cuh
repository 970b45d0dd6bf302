// Experts' products whose token rows pass through shared memory: read once a block instead of once a warp. Every warp has a tile of weights of its own.
#pragma once
#include "experts.cuh"

// NT tiles of eight tokens, CHUNK steps of columns a buffer; rows are 64 bytes longer, so that two tokens' pieces lie in different banks.
template <class W, int NT>
struct Staged {
    static constexpr int CHUNK = 512 / (NT * W::STEP), BUFFERS = (W::STAGES - 1 + CHUNK - 1) / CHUNK + 1, ROW = CHUNK * W::STEP * 2 + 64;
    static constexpr int ROW_PIECES = CHUNK * W::STEP / 8;
    u8 weights[MMA_WARPS][W::STAGES * W::SIZE];
    u8 tokens[BUFFERS][8 * NT * ROW];
    // For every piece of a chunk and tile of tokens: what the sums of a lane's four elements begin with, by `lane % 4`.
    float4 offsets[W::OFFSET ? CHUNK * W::PIECES : 1][NT][4];
};

__device__ __forceinline__ uint4 shared_load16(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ uint2 shared_load8(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
__device__ __forceinline__ float4 shared_load_floats(u32 at) {
    const uint4 v = shared_load16(at);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ void copy16_to(u32 to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
__device__ __forceinline__ void copy16_or_zero(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Sums of one unit of work. `held`: whether this warp has a tile; `row(i)`: the row of `x` that is token `i`; only tiles with tokens are computed.
// Weights ahead of the kernel's turn would not pay: copies land in the order of their groups, so that each block would begin when all its first
// stages are there, and only blocks of the first wave have a turn to wait for (H200, 2026-11-30: 4 % slower at 64 tokens).
template <class W, int NT, class Row>
__device__ __forceinline__ void accumulate_staged(Staged<W, NT>& s, W w, bool held, int tokens, const bf16* x, const Row& row, int cols, float (&acc)[NT][4]) {
    using S = Staged<W, NT>;
    constexpr u32 BUFFER = sizeof(s.tokens[0]);
    constexpr int DEPTH = W::STAGES, COPIES = 8 * NT * S::ROW_PIECES / (MMA_WARPS * WARP), APART = MMA_WARPS * WARP / S::ROW_PIECES;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4, live = (tokens + 7) / 8;
    const int steps = (cols + W::STEP - 1) / W::STEP, chunks = (steps + S::CHUNK - 1) / S::CHUNK;
    // Addresses of this lane in shared memory, worked out once.
    const u32 stages = shared_address(s.weights[warp]), rows = shared_address(s.tokens), offsets = shared_address(s.offsets) + q * 16;
    // In pieces of 16 bytes.
    u32 from_rows[COPIES];
    const int piece = threadIdx.x % S::ROW_PIECES, first_row = threadIdx.x / S::ROW_PIECES;
#pragma unroll
    for (int j = 0; j < COPIES; ++j) from_rows[j] = (u32)row(min(first_row + j * APART, tokens - 1)) * (u32)(cols / 8) + piece;
    const u32 to_rows = rows + first_row * S::ROW + piece * 16;
    const auto ask = [&](int chunk) {
        if (chunk >= chunks) return;
        const u32 at = chunk * S::CHUNK * (W::STEP / 8);
        const u32 to = to_rows + chunk % S::BUFFERS * BUFFER;
        const bool there = at + piece < cols / 8;
#pragma unroll
        for (int j = 0; j < COPIES; ++j)
            if (first_row + j * APART < live * 8) copy16_or_zero(to + j * APART * S::ROW, x + (size_t)(from_rows[j] + (there ? at : 0)) * 8, there);
    };
#pragma unroll
    for (int u = 0; u < DEPTH - 1; ++u) {
        if (u % S::CHUNK == 0 && u / S::CHUNK < S::BUFFERS - 1) ask(u / S::CHUNK);
        if (held && u < steps) w.issue(stages + u * W::SIZE);
        close_copies();
    }
    u32 from = stages, to = stages + (DEPTH - 1) * W::SIZE, buffer = rows + g * S::ROW + q * 16;
    for (int chunk = 0, step = 0; chunk < chunks; ++chunk) {
        await_copies<DEPTH - 2>();
        __syncthreads();
        ask(chunk + S::BUFFERS - 1);
        if (W::OFFSET) {
            // -136 times the sum of a token's columns in every piece; the warps share the tiles and pieces of the chunk.
#pragma unroll
            for (int j = 0; j < NT * S::CHUNK * W::PIECES / MMA_WARPS; ++j) {
                const int n = (warp + j * MMA_WARPS) % NT, p = (warp + j * MMA_WARPS) / NT;
                if (n >= live) continue;
                const uint4 v = shared_load16(buffer + n * 8 * S::ROW + p * 64);
                float sum[4] = {0.f, 0.f, 0.f, 0.f};
                mma(sum, INT4_OFFSET, INT4_OFFSET, INT4_OFFSET, INT4_OFFSET, v.x, v.y);
                mma(sum, INT4_OFFSET, INT4_OFFSET, INT4_OFFSET, INT4_OFFSET, v.z, v.w);
                if (g == 0) s.offsets[p][n][q] = make_float4(sum[0], sum[1], sum[0], sum[1]);
            }
            __syncthreads();
        }
#pragma unroll
        for (int u = 0; u < S::CHUNK; ++u, ++step) {
            if (step >= steps) break;
            if (u > 0) await_copies<DEPTH - 2>();
            const typename W::Raw now = W::read(from);
            if (held && step + DEPTH - 1 < steps) w.issue(to);
            close_copies();
            from = from == stages + (DEPTH - 1) * W::SIZE ? stages : from + W::SIZE;
            to = to == stages + (DEPTH - 1) * W::SIZE ? stages : to + W::SIZE;
            w.template multiply_staged<NT>(
                now, live, [&](int n, int p) { return shared_load16(buffer + n * 8 * S::ROW + u * W::STEP * 2 + p * 64); },
                [&](int n, int p) { return shared_load_floats(offsets + ((u * W::PIECES + p) * NT + n) * 64); }, acc);
        }
        buffer = buffer >= rows + (S::BUFFERS - 1) * BUFFER ? buffer - (S::BUFFERS - 1) * BUFFER : buffer + BUFFER;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// mma with another addend than its result.
__device__ __forceinline__ void mma_from(float (&d)[4], const float4& c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
}

struct Int4Staged : Int4Stream {
    static constexpr int STAGES = 5, SIZE = 1152;
    static constexpr bool OFFSET = true;
    // The next tile; `tile` is this lane's place in it.
    __device__ __forceinline__ void issue(u32 stage) {
        const int lane = threadIdx.x % WARP;
        stage += lane * 16;
        copy16_to(stage, tile);
        copy16_to(stage + 512, tile + 512);
        if (lane < 8) copy16_to(stage + 1024, tile + 1024);
        tile += INT4_TILE_BYTES;
    }
    __device__ __forceinline__ static Raw read(u32 stage) {
        const int lane = threadIdx.x % WARP;
        return Raw{shared_load16(stage + lane * 16), shared_load16(stage + 512 + lane * 16), shared_load8(stage + 1024 + lane / 4 * 8), shared_load8(stage + 1088 + lane / 4 * 8)};
    }
    // The integers enter the product raised; the sum begins with what takes that off again.
    template <int NT, class Piece, class Offset>
    __device__ __forceinline__ void multiply_staged(const Raw& w, int live, const Piece& piece, const Offset& offset, float (&acc)[NT][4]) const {
        const u32 low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u32 a[4], b[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) { a[j] = int4_raised(low[i], j); b[j] = int4_raised(high[i], j); }
            const float low_scale = int4_scale(w.low_scale, i), high_scale = int4_scale(w.high_scale, i);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                if (n > 0 && n >= live) break;
                const uint4 v = piece(n, i);
                float sum[4];
                mma_from(sum, offset(n, i), a[0], b[0], a[1], b[1], v.x, v.y);
                mma(sum, a[2], b[2], a[3], b[3], v.z, v.w);
                add_scaled(acc[n], sum, low_scale, high_scale);
            }
        }
    }
};
struct Int4ExpertsStaged : Int4Experts {
    using Stream = Int4Staged;
    template <bool FUSED>
    __device__ __forceinline__ Int4Staged tile(int expert, int tile, int g) const { 
        Int4Staged s{Int4Experts::template tile<FUSED>(expert, tile, g)};
        s.tile += threadIdx.x % WARP * 16;
        return s;
    }
};

// bf16 rows, 64 columns a step: a whole line of memory of every row.
struct Bf16Staged {
    static constexpr int STEP = 64, PIECES = 2, STAGES = 3, SIZE = 2048;
    static constexpr bool OFFSET = false;
    struct Raw { uint4 low[2], high[2]; };
    const bf16 *low, *high;
    int cols;
    // The next columns; `low` and `high` are this lane's places in them, `cols` are left from there.
    __device__ __forceinline__ void issue(u32 stage) {
        stage += threadIdx.x % WARP * 16;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const bool there = p * 32 < cols;
            copy16_or_zero(stage + p * 1024, there ? low + p * 32 : low, there);
            copy16_or_zero(stage + p * 1024 + 512, there ? high + p * 32 : high, there);
        }
        low += STEP, high += STEP, cols -= STEP;
    }
    __device__ __forceinline__ static Raw read(u32 stage) {
        stage += threadIdx.x % WARP * 16;
        return Raw{{shared_load16(stage), shared_load16(stage + 1024)}, {shared_load16(stage + 512), shared_load16(stage + 1536)}};
    }
    template <int NT, class Piece, class Offset>
    __device__ __forceinline__ void multiply_staged(const Raw& w, int live, const Piece& piece, const Offset&, float (&acc)[NT][4]) const {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            if (n > 0 && n >= live) break;
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const uint4 v = piece(n, p);
                mma(acc[n], w.low[p].x, w.high[p].x, w.low[p].y, w.high[p].y, v.x, v.y);
                mma(acc[n], w.low[p].z, w.high[p].z, w.low[p].w, w.high[p].w, v.z, v.w);
            }
        }
    }
};
struct Bf16ExpertsStaged : Bf16Experts<2> {
    using Stream = Bf16Staged;
    template <bool FUSED>
    __device__ __forceinline__ Bf16Staged tile(int expert, int tile, int g) const {
        const auto s = Bf16Experts<2>::template tile<FUSED>(expert, tile, g);
        const int col = threadIdx.x % 4 * 8;
        return Bf16Staged{s.low + col, s.high + col, s.cols - col};
    }
};

template <int NT, class Experts>
__device__ __forceinline__ void gate_up_staged(const bf16* x, const Experts& experts, const bf16* bias, const Work& work, const int* list, bf16* h, int topk, int clamped,
                                               float alpha, float limit) {
    using W = typename Experts::Stream;
    extern __shared__ __align__(128) u8 shared[];
    Staged<W, NT>& s = *reinterpret_cast<Staged<W, NT>*>(shared);
    if (work.first >= work.last) return;
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    const int tile = blockIdx.x * MMA_WARPS + warp, hidden = experts.cols, inter = experts.rows / 2, col = tile * 8 + g;
    const bool held = tile * 8 < inter;
    float acc[NT][4] = {};
    const W w = experts.template tile<true>(work.expert, held ? tile : 0, g);
    accumulate_staged<W, NT>(s, w, held, work.last - work.first, x, [&](int i) { return list[work.first + i] / topk; }, hidden, acc);
    if (!held || col >= inter) return;
    end_gate_up<NT, true>(acc, bias, work.expert, work.first, work.last, list, h, inter, col, q, clamped, alpha, limit);
}

template <int NT, class Experts>
__device__ __forceinline__ void down_staged(const bf16* h, const Experts& experts, const bf16* bias, const Work& work, const int* list, float* y) {
    using W = typename Experts::Stream;
    extern __shared__ __align__(128) u8 shared[];
    Staged<W, NT>& s = *reinterpret_cast<Staged<W, NT>*>(shared);
    if (work.first >= work.last) return;
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    const int tile = blockIdx.x * MMA_WARPS + warp, hidden = experts.rows, inter = experts.cols;
    const bool held = tile * 16 < hidden;
    float acc[NT][4] = {};
    const W w = experts.template tile<false>(work.expert, held ? tile : 0, g);
    accumulate_staged<W, NT>(s, w, held, work.last - work.first, h, [&](int i) { return list[work.first + i]; }, inter, acc);
    if (!held) return;
    end_down<NT>(acc, bias, work, work.first, list, y, hidden, tile, g, q);
}
#define GATE_UP_STAGED(NAME, NT, BLOCKS, PARAMS, EXPERTS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS)                                                                    \
        experts_gate_up_##NAME##_staged_##NT(const bf16* x, PARAMS, const bf16* bias, const int* ids, const int* offsets, const int* list, const int* active, \
                                             bf16* h, int hidden, int inter, int topk, int expert_start, int local_experts, int parts, int clamped, \
                                             float alpha, float limit) { take_turn_first();                                                  \
        const int rows = 2 * inter, cols = hidden;                                                                                            \
        gate_up_staged<NT>(x, EXPERTS, bias, work_of<false>(8 * NT, ids, offsets, active, expert_start, local_experts), list, h, topk, clamped, alpha, limit); \
    }
#define DOWN_STAGED(NAME, NT, BLOCKS, PARAMS, EXPERTS)                                                                                        \
    extern "C" __global__ void __launch_bounds__(MMA_WARPS * WARP, BLOCKS)                                                                    \
        experts_down_##NAME##_staged_##NT(const bf16* h, PARAMS, const bf16* bias, const int* offsets, const int* list, const int* active, float* y, \
                                          int hidden, int inter, int local_experts, int parts) { take_turn();                                \
        const int rows = hidden, cols = inter;                                                                                                \
        down_staged<NT>(h, EXPERTS, bias, work_of<false>(8 * NT, nullptr, offsets, active, 0, local_experts), list, y);                              \
    }
#define INT4_STAGED (Int4ExpertsStaged{Int4Experts{w, rows, cols}})
#define BF16_STAGED (Bf16ExpertsStaged{Bf16Experts<2>{w, rows, cols}})
