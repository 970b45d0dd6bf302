// Attention of a token against its sequence's cache on the tensor cores, the cache cut in splits so that few tokens still fill the GPU.
//
// A block holds one token, up to 16 query heads that share a key-value head, and one split. It walks the split 64 rows at a time: scores,
// online softmax, values. MLA's value is the first part of its key row, so its tile is loaded once.
#include "shape.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP, HEADS = 16, ROWS = 64, PAD = 8;
// Threads that share a head's softmax, and rows that each of them takes.
constexpr int TEAM = THREADS / HEADS, TEAM_ROWS = ROWS / TEAM;
constexpr int SCORE_STRIDE = ROWS + 4, WEIGHT_STRIDE = ROWS + PAD;

__device__ __forceinline__ void copy16(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void load_matrices(u32 (&m)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(p)));
}
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(p)));
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Cache {
    const bf16* rows;   // the key of row 0 of the sequence, for this key-value head
    int stride, key_width, value_offset, value_width;
};

// A tile of `width` columns of rows base..: those from..to of the sequence, zeros from `last` on.
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* rows, int stride, int width, int base, int from, int to, int last) {
    const int pieces = width / 8, lane = threadIdx.x % WARP;
    // A warp a row, so that nothing has to be divided; narrow rows share a warp.
    const int across = pieces >= WARP ? WARP : pieces >= 16 ? 16 : 8, rows_a_warp = WARP / across;
    for (int row = threadIdx.x / WARP * rows_a_warp + lane / across; row < ROWS; row += WARPS * rows_a_warp) {
        if (base + row < from || base + row >= to) continue;
        const bool there = base + row < last;
        const bf16* at = rows + (size_t)(there ? base + row : 0) * stride;
        for (int piece = lane % across; piece < pieces; piece += across) copy16(tile + row * (width + PAD) + piece * 8, at + piece * 8, there);
    }
}

// What the softmax of one query head has seen; the threads of its team hold a copy each.
struct Seen {
    float top, sum;
};

// Scores to weights: the threads of a team take TEAM_ROWS rows each. `keep[head]` rescales what was summed before.
__device__ __forceinline__ void soften(const float* scores, bf16* weights, float* keep, Seen& seen, int base, int first, int last, float scale) {
    const int head = threadIdx.x / TEAM, part = threadIdx.x % TEAM;
    float s[TEAM_ROWS], top = seen.top;
#pragma unroll
    for (int i = 0; i < TEAM_ROWS; ++i) {
        const int row = base + part + i * TEAM;
        s[i] = row >= first && row < last ? scores[head * SCORE_STRIDE + part + i * TEAM] * scale : -INF;
        top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int o = 1; o < TEAM; o *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < TEAM_ROWS; ++i) {
        const bf16 p = to_bf16(s[i] == -INF ? 0.f : __expf(s[i] - top));
        weights[head * WEIGHT_STRIDE + part + i * TEAM] = p;
        sum += f32(p);
    }
#pragma unroll
    for (int o = 1; o < TEAM; o *= 2) sum += __shfl_xor_sync(FULL, sum, o);
    const float old = seen.top == -INF ? 0.f : __expf(seen.top - top);
    seen = Seen{top, seen.sum * old + sum};
    if (part == 0) keep[head] = old;
}

// The splits of a token are the blocks of a cluster: each merges a part of the columns of all heads, over the splits in order. `sums` holds a
// block's [head, value], `seen` its heads' states.
template <int CLUSTER>
__device__ __forceinline__ void merge_cluster(const float4* sums, const float2* seen, const bf16* sinks, bf16* out, int held, int value_width) {
    const int pieces = value_width / 4, rank = cluster_rank();
    cluster_barrier();
    for (int i = rank * THREADS + threadIdx.x; i < held * pieces; i += CLUSTER * THREADS) {
        const int head = i / pieces;
        float4 part[CLUSTER];
        float2 states[CLUSTER];
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) part[r] = cluster_load(sums + i, r), states[r] = cluster_load(seen + head, r);
        const float sink = sinks ? f32(sinks[head]) : -INF;
        float top = sink;
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) top = fmaxf(top, states[r].x);
        float sum = 0.f;
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) {
            const float factor = states[r].y > 0.f ? __expf(states[r].x - top) : 0.f;
            sum += states[r].y * factor;
            v.x += part[r].x * factor, v.y += part[r].y * factor, v.z += part[r].z * factor, v.w += part[r].w * factor;
        }
        if (sinks) sum += __expf(sink - top);
        const __nv_bfloat162 low = __floats2bfloat162_rn(v.x / sum, v.y / sum), high = __floats2bfloat162_rn(v.z / sum, v.w / sum);
        *reinterpret_cast<uint2*>(out + (size_t)i * 4) = make_uint2(*reinterpret_cast<const u32*>(&low), *reinterpret_cast<const u32*>(&high));
    }
    // Others may still be reading what is here.
    cluster_barrier();
}

// PAIRS: pairs of 8-column value tiles of a warp; 128 * PAIRS columns at most. `partial` [token, head, split, value], `states` [token, head, split]
// of (top, sum); one split writes the result itself. Rows before `past` are of earlier passes, and the first of them are asked for ahead of the
// kernel's turn.
template <int PAIRS, int CLUSTER>
__device__ __forceinline__ void attend(const bf16* q, const Cache& c, const bf16* sinks, bf16* out, float* partial, float2* states, int held, int past, int first,
                                       int last, int begin, int end, float scale, int splits) {
    extern __shared__ __align__(16) u8 shared[];
    const int key_stride = c.key_width + PAD, value_stride = c.value_width + PAD, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    bf16* queries = (bf16*)shared;
    bf16* keys = queries + HEADS * key_stride;
    bf16* values = c.value_offset ? keys + ROWS * key_stride : keys;
    const int values_at = c.value_offset ? value_stride : key_stride;
    float* scores = (float*)(values + ROWS * values_at);
    bf16* weights = (bf16*)(scores + HEADS * SCORE_STRIDE);
    float* keep = (float*)(weights + HEADS * WEIGHT_STRIDE);
    const auto load_rows = [&](int base, int from, int to) {
        load_tile(keys, c.rows, c.stride, c.key_width, base, from, to, end);
        if (c.value_offset) load_tile(values, c.rows + c.value_offset, c.stride, c.value_width, base, from, to, end);
    };
    const int early = min(past, end);
    if (begin < early) load_rows(begin, begin, early);
    await_previous();
    for (int i = threadIdx.x; i < HEADS * c.key_width / 8; i += THREADS) {
        const int row = i / (c.key_width / 8), piece = i % (c.key_width / 8);
        copy16(queries + row * key_stride + piece * 8, q + (size_t)(row < held ? row : 0) * c.key_width + piece * 8, row < held);
    }
    Seen seen{-INF, 0.f};
    float acc[PAIRS][2][4] = {};
    for (int base = begin; base < end; base += ROWS) {
        load_rows(base, base == begin ? early : base, base + ROWS);
        copies_done();
        __syncthreads();
        // A warp scores eight rows, the even and the odd sixteens of columns apart so that two sums are under way.
        float s[2][4] = {};
        const bf16 *query = queries + lane % 16 * key_stride + lane / 16 * 8, *key = keys + (warp * 8 + lane % 8) * key_stride + lane / 8 * 8;
        int k = 0;
#pragma unroll 2
        for (; k + 32 <= c.key_width; k += 32) {
            u32 a[4], a2[4], b[4];
            load_matrices(a, query + k);
            load_matrices(a2, query + k + 16);
            load_matrices(b, key + k);
            mma(s[0], a, b[0], b[1]);
            mma(s[1], a2, b[2], b[3]);
        }
        if (k < c.key_width) {
            u32 a[4], b[4];
            load_matrices(a, query + k);
            // The second half of the matrices is not used: its addresses stay inside the row's padding.
            load_matrices(b, keys + (warp * 8 + lane % 8) * key_stride + k + lane / 8 % 2 * 8);
            mma(s[0], a, b[0], b[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[(lane / 4 + i / 2 * 8) * SCORE_STRIDE + warp * 8 + lane % 4 * 2 + i % 2] = s[0][i] + s[1][i];
        __syncthreads();
        soften(scores, weights, keep, seen, base, first, last, scale);
        __syncthreads();
        const float low = keep[lane / 4], high = keep[lane / 4 + 8];
#pragma unroll
        for (int p = 0; p < PAIRS; ++p)
#pragma unroll
            for (int n = 0; n < 2; ++n) acc[p][n][0] *= low, acc[p][n][1] *= low, acc[p][n][2] *= high, acc[p][n][3] *= high;
#pragma unroll
        for (int k = 0; k < ROWS; k += 16) {
            u32 a[4];
            load_matrices(a, weights + lane % 16 * WEIGHT_STRIDE + k + lane / 16 * 8);
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                const int col = (warp + WARPS * p) * 16;
                if (col >= c.value_width) break;
                u32 b[4];
                load_transposed(b, values + (k + lane / 8 % 2 * 8 + lane % 8) * values_at + col + lane / 16 * 8);
                mma(acc[p][0], a, b[0], b[1]);
                mma(acc[p][1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    if (CLUSTER > 1) {
        // Everybody is done with the tiles: the sums lie in their place, the states in that of the scores.
        float* sums = (float*)keys;
        float2* seen_by = (float2*)scores;
        if (threadIdx.x % TEAM == 0) seen_by[threadIdx.x / TEAM] = make_float2(seen.top, seen.sum);
#pragma unroll
        for (int p = 0; p < PAIRS; ++p)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const int row = lane / 4 + i / 2 * 8, col = (warp + WARPS * p) * 16 + n * 8 + lane % 4 * 2;
                    if (col < c.value_width) *reinterpret_cast<float2*>(sums + row * c.value_width + col) = make_float2(acc[p][n][i], acc[p][n][i + 1]);
                }
        return merge_cluster<CLUSTER>(reinterpret_cast<const float4*>(sums), seen_by, sinks, out, held, c.value_width);
    }
    // The totals, for the lanes that hold the values.
    const int head = threadIdx.x / TEAM;
    if (threadIdx.x % TEAM == 0 && head < held) {
        if (splits > 1) states[(size_t)head * splits] = make_float2(seen.top, seen.sum);
        float factor = 1.f;
        if (splits == 1) {
            const float sink = sinks ? f32(sinks[head]) : -INF, top = fmaxf(seen.top, sink);
            const float mine = seen.top == -INF ? 0.f : __expf(seen.top - top);
            factor = mine / (seen.sum * mine + (sinks ? __expf(sink - top) : 0.f));
        }
        keep[head] = factor;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PAIRS; ++p)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + i / 2 * 8, col = (warp + WARPS * p) * 16 + n * 8 + lane % 4 * 2 + i % 2;
                if (row >= held || col >= c.value_width) continue;
                if (splits == 1) out[(size_t)row * c.value_width + col] = to_bf16(acc[p][n][i] * keep[row]);
                else partial[(size_t)row * splits * c.value_width + col] = acc[p][n][i];
            }
}

// MLA: key_heads 1, key_width kv_lora + rope, value_width kv_lora, value_offset 0. GQA: a cache row is [k heads | v heads].
// Grid: (T, key heads * ceil(group / 16), splits); a cluster's blocks are the splits, which it merges. A window of 0 is none.
#define ATTEND_AS(NAME, PAIRS, CLUSTER, ATTRIBUTE)                                                                                                  \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(THREADS) NAME(                                                                           \
        const bf16* q, const bf16* cache, const bf16* sinks, bf16* out, float* partial, float2* states, const SequenceRows* sequences,             \
        int sequence_count, int heads, int key_heads, int key_width, int value_width, int stride, int value_offset, int window, float scale,        \
        int splits) {                                                                                                                               \
        admit_next();                                                                                                                               \
        const int group = heads / key_heads, tiles = (group + HEADS - 1) / HEADS, key_head = blockIdx.y / tiles;                                     \
        const int t = blockIdx.x, head = key_head * group + blockIdx.y % tiles * HEADS, held = min(HEADS, (key_head + 1) * group - head);            \
        const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];                                                                 \
        const int last = s.past + t - s.row_start + 1, first = window > 0 ? max(0, last - window) : 0;                                               \
        const int share = ((last - first + splits - 1) / splits + ROWS - 1) / ROWS * ROWS;                                                          \
        const int begin = first + blockIdx.z * share, end = min(last, begin + share);                                                                \
        const size_t row = (size_t)t * heads + head;                                                                                                 \
        const Cache c{cache + (size_t)s.cache_start * stride + (size_t)key_head * key_width, stride, key_width, value_offset, value_width};           \
        attend<PAIRS, CLUSTER>(q + row * key_width, c, sinks ? sinks + head : nullptr, out + row * value_width,                                      \
                               partial + (row * splits + blockIdx.z) * value_width, states + row * splits + blockIdx.z, held, s.past, first, last,   \
                               begin, end, scale, splits);                                                                                           \
    }
#define ATTEND(PAIRS)                                                              \
    ATTEND_AS(attend_##PAIRS, PAIRS, 1, )                                          \
    ATTEND_AS(attend_##PAIRS##_pair, PAIRS, 2, __cluster_dims__(1, 1, 2))          \
    ATTEND_AS(attend_##PAIRS##_cluster, PAIRS, 4, __cluster_dims__(1, 1, 4))
ATTEND(1)
ATTEND(2)
ATTEND(4)

// out[T, heads, value_width] from the splits. Grid: (T, heads). Shared: `splits` floats.
extern "C" __global__ void attend_combine(const float* partial, const float2* states, const bf16* sinks, bf16* out, int heads, int value_width, int splits) {
    take_turn();
    extern __shared__ float factors[];
    const size_t row = (size_t)blockIdx.x * heads + blockIdx.y;
    const float2* seen = states + row * splits;
    const float sink = sinks ? f32(sinks[blockIdx.y]) : -INF;
    // Every warp finds the greatest score by itself.
    float top = sink;
    for (int s = threadIdx.x % WARP; s < splits; s += WARP) top = fmaxf(top, seen[s].x);
    top = warp_max(top);
    float sum = 0.f;
    for (int s = threadIdx.x % WARP; s < splits; s += WARP) {
        const float2 state = seen[s];
        const float factor = state.y > 0.f ? __expf(state.x - top) : 0.f;
        sum += state.y * factor;
        if (threadIdx.x < WARP) factors[s] = factor;
    }
    sum = warp_sum(sum) + (sinks ? __expf(sink - top) : 0.f);
    __syncthreads();
    const float* from = partial + row * splits * value_width;
    for (int i = threadIdx.x * 4; i < value_width; i += blockDim.x * 4) {
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
        for (int s = 0; s < splits; ++s) {
            const float factor = factors[s];
            // A split without rows has written nothing.
            if (factor == 0.f) continue;
            const float4 part = *reinterpret_cast<const float4*>(from + (size_t)s * value_width + i);
            v.x += part.x * factor, v.y += part.y * factor, v.z += part.z * factor, v.w += part.w * factor;
        }
        bf16* to = out + row * value_width + i;
        to[0] = to_bf16(v.x / sum), to[1] = to_bf16(v.y / sum), to[2] = to_bf16(v.z / sum), to[3] = to_bf16(v.w / sum);
    }
}
