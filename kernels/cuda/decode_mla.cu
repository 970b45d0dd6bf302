// MLA attention of a token against its sequence's cache for many heads: 64 query heads share every row that is read, so that a row leaves the
// L2 cache once. Key rows are 576 wide (latent 512, rope 64), values the first 512.
//
// Eight warps: warp w holds 16 heads (w % 4) and half (w / 4) of the contracted columns, its queries in registers; the halves' scores meet in
// shared memory. For the values the halves are those of the value columns. Two tiles of rows, one read while the other arrives.
#include "common.cuh"

constexpr int THREADS = 256, HEADS = 64, ROWS = 32, KEY = 576, VALUE = 512, PAD = 8;
constexpr int HALF_KEY = KEY / 2, HALF_VALUE = VALUE / 2, STEPS = HALF_KEY / 16, PAIRS = HALF_VALUE / 16;
constexpr int KEY_STRIDE = KEY + PAD, SCORE_STRIDE = ROWS + 4, WEIGHT_STRIDE = ROWS + PAD;

struct Tiles {
    bf16 keys[2][ROWS * KEY_STRIDE];
    float scores[2][HEADS * SCORE_STRIDE];
    bf16 weights[HEADS * WEIGHT_STRIDE];
    float keep[HEADS];
    // (top, sum) of every head's softmax.
    float2 seen[HEADS];
};

__device__ __forceinline__ void load_matrices(u32 (&m)[4], u32 p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(p));
}
__device__ __forceinline__ void load_transposed(u32 (&m)[4], u32 p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(p));
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows base.. into a tile, zeros from `end` on. A warp takes every eighth row.
__device__ __forceinline__ void load_rows(bf16* tile, const bf16* rows, int base, int end) {
    const int lane = threadIdx.x % WARP;
    for (int row = threadIdx.x / WARP; row < ROWS; row += THREADS / WARP) {
        const bool there = base + row < end;
        const bf16* from = rows + (size_t)(there ? base + row : 0) * KEY;
        for (int piece = lane; piece < KEY / 8; piece += WARP)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(tile + row * KEY_STRIDE + piece * 8)), "l"(from + piece * 8), "r"(there ? 16 : 0) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Grid: (T, ceil(heads / 64), splits). `partial` and `states` as in decode.cu.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_mla(const bf16* q, const bf16* cache, bf16* out, float* partial, float2* states,
                                                                    const SequenceRows* sequences, int sequence_count, int heads, float scale, int splits) {
    take_turn();
    extern __shared__ __align__(128) u8 shared[];
    Tiles& tiles = *reinterpret_cast<Tiles*>(shared);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, half = warp / 4, heads_at = warp % 4 * 16;
    const int t = blockIdx.x, head = blockIdx.y * HEADS, held = min(HEADS, heads - head);
    const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
    const int last = s.past + t - s.row_start + 1, share = ((last + splits - 1) / splits + ROWS - 1) / ROWS * ROWS;
    const int begin = blockIdx.z * share, end = min(last, begin + share);
    const bf16* rows = cache + (size_t)s.cache_start * KEY;
    const size_t first = (size_t)t * heads + head;
    if (begin < end) load_rows(tiles.keys[0], rows, begin, end);
    u32 query[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = min(heads_at + lane / 4 + i % 2 * 8, held - 1);
            query[k][i] = *reinterpret_cast<const u32*>(q + (first + row) * KEY + half * HALF_KEY + k * 16 + i / 2 * 8 + lane % 4 * 2);
        }
    if (threadIdx.x < HEADS) tiles.seen[threadIdx.x] = make_float2(-INF, 0.f);
    float acc[2 * PAIRS][4] = {};
    int tile = 0;
    for (int base = begin; base < end; base += ROWS, tile ^= 1) {
        if (base + ROWS < end) {
            load_rows(tiles.keys[tile ^ 1], rows, base + ROWS, end);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        // Addresses in bytes: registers are short here.
        const u32 keys = shared_address(tiles.keys[tile]);
        const u32 scored = keys + 2 * ((lane / 16 * 8 + lane % 8) * KEY_STRIDE + half * HALF_KEY + lane / 8 % 2 * 8);
        float score[4][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                u32 b[4];
                load_matrices(b, scored + 2 * (n * 16 * KEY_STRIDE + k * 16));
                mma(score[2 * n], query[k], b[0], b[1]);
                mma(score[2 * n + 1], query[k], b[2], b[3]);
            }
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) tiles.scores[half][(heads_at + lane / 4 + i / 2 * 8) * SCORE_STRIDE + n * 8 + lane % 4 * 2 + i % 2] = score[n][i];
        __syncthreads();
        {
            // Four threads a head, eight rows each.
            const int mine = threadIdx.x / 4, part = threadIdx.x % 4;
            const float2 seen = tiles.seen[mine];
            float v[8], best = seen.x;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int at = mine * SCORE_STRIDE + part + 4 * i;
                v[i] = base + part + 4 * i < end ? (tiles.scores[0][at] + tiles.scores[1][at]) * scale : -INF;
                best = fmaxf(best, v[i]);
            }
            best = fmaxf(best, __shfl_xor_sync(FULL, best, 1));
            best = fmaxf(best, __shfl_xor_sync(FULL, best, 2));
            float more = 0.f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bf16 p = to_bf16(v[i] == -INF ? 0.f : __expf(v[i] - best));
                tiles.weights[mine * WEIGHT_STRIDE + part + 4 * i] = p;
                more += f32(p);
            }
            more += __shfl_xor_sync(FULL, more, 1);
            more += __shfl_xor_sync(FULL, more, 2);
            const float old = seen.x == -INF ? 0.f : __expf(seen.x - best);
            // The four threads, all of one warp, have read it by now. Shuffles alone do not order what lies in shared memory.
            __syncwarp();
            if (part == 0) tiles.keep[mine] = old, tiles.seen[mine] = make_float2(best, seen.y * old + more);
        }
        __syncthreads();
        const float low = tiles.keep[heads_at + lane / 4], high = tiles.keep[heads_at + lane / 4 + 8];
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n) acc[n][0] *= low, acc[n][1] *= low, acc[n][2] *= high, acc[n][3] *= high;
        const u32 valued = keys + 2 * ((lane / 8 % 2 * 8 + lane % 8) * KEY_STRIDE + half * HALF_VALUE + lane / 16 * 8);
        const u32 weighted = shared_address(tiles.weights) + 2 * ((heads_at + lane % 16) * WEIGHT_STRIDE + lane / 16 * 8);
#pragma unroll
        for (int k = 0; k < ROWS; k += 16) {
            u32 a[4];
            load_matrices(a, weighted + 2 * k);
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                u32 b[4];
                load_transposed(b, valued + 2 * (k * KEY_STRIDE + p * 16));
                mma(acc[2 * p], a, b[0], b[1]);
                mma(acc[2 * p + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x % 4 == 0) {
        const int mine = threadIdx.x / 4;
        if (splits > 1 && mine < held) states[(first + mine) * splits + blockIdx.z] = tiles.seen[mine];
        tiles.keep[mine] = splits > 1 ? 1.f : 1.f / tiles.seen[mine].y;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = heads_at + lane / 4 + i / 2 * 8, col = half * HALF_VALUE + n * 8 + lane % 4 * 2 + i % 2;
            if (row >= held) continue;
            if (splits == 1) out[(first + row) * VALUE + col] = to_bf16(acc[n][i] * tiles.keep[row]);
            else partial[((first + row) * splits + blockIdx.z) * VALUE + col] = acc[n][i];
        }
}
