// MLA attention of a token against its sequence's cache on Hopper's warpgroup products: 64 query heads share every row that is read. Key rows are
// 576 wide (latent 512, rope 64), values the first 512, so that a row is read once and used twice.
//
// Three warpgroups. The last one asks for rows, scores them and turns scores to weights; the first two hold 256 columns of the sums each. They
// meet at barriers in shared memory only, so that rows arrive while others are scored and others are summed.
#include "shape.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 3 * GROUP, HEADS = 64, KEY = 576, VALUE = 512, ROWS = 32, STAGES = 4;
constexpr int BLOCK_COLS = 64, KEY_BLOCKS = KEY / BLOCK_COLS, TILE_BLOCK = ROWS * ROW_BYTES, TILE = KEY_BLOCKS * TILE_BLOCK;
// Tiles whose weights lie side by side in a row of 128 bytes.
constexpr int TURNS = BLOCK_COLS / ROWS;
constexpr int SUMS = VALUE / 2 * HEADS / GROUP, SCORES = ROWS * HEADS / GROUP;

struct Shared {
    u8 queries[KEY_BLOCKS * HEADS * ROW_BYTES];
    u8 tiles[STAGES][TILE];
    u8 weights[HEADS * ROW_BYTES];
    float keep[TURNS][HEADS];
    // (top, sum) of every head's softmax.
    float2 seen[HEADS];
    u64 full[STAGES], used[STAGES], weighted[TURNS];
};

__device__ __forceinline__ void barrier_init(u64& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives once the thread's copies so far have landed.
__device__ __forceinline__ void barrier_arrive_copied(u64& barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ __forceinline__ void barrier_wait(u64& barrier, int round) {
    u32 done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_address(&barrier)), "r"(round & 1)
                     : "memory");
    } while (!done);
}
// What a block works on: rows begin..end of a sequence's cache.
struct Share {
    const bf16* rows;
    int begin, end, tiles;
};

// Asks for tile `n`; `full` of its stage is reached when it has landed. By the threads of one warpgroup.
__device__ __forceinline__ void ask(Shared& s, const Share& share, int n) {
    const int thread = threadIdx.x % GROUP, piece = thread % 8, row = thread / 8, stage = n % STAGES;
    const u32 to = shared_address(s.tiles[stage]) + swizzled(row, piece);
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j) {
        const int at = share.begin + n * ROWS + j * 16 + row;
        const bool there = at < share.end;
        const bf16* from = share.rows + (size_t)(there ? at : share.begin) * KEY + piece * 8;
#pragma unroll
        for (int b = 0; b < KEY_BLOCKS; ++b) copy16(to + b * TILE_BLOCK + j * 16 * ROW_BYTES, from + b * BLOCK_COLS, there);
    }
    barrier_arrive_copied(s.full[stage]);
}

__device__ __forceinline__ void scores_of(Shared& s, int stage, float (&score)[SCORES]) {
    const u64 query = operand(shared_address(s.queries), 0), key = operand(shared_address(s.tiles[stage]), 0);
    products_begin(score);
#pragma unroll
    for (int k = 0; k < KEY / 16; ++k) {
        const u64 q = further(query, k / 4 * HEADS * ROW_BYTES + k % 4 * 32), c = further(key, k / 4 * TILE_BLOCK + k % 4 * 32);
        if (k == 0) product_32<0>(score, q, c);
        else product_32<1>(score, q, c);
    }
    products_end(score);
}

// The warpgroup that scores.
__device__ __forceinline__ void score_rows(Shared& s, const Share& share, float scale) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * 16 + lane / 4, q = lane % 4;
    float top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
    const u32 weights = shared_address(s.weights) + row * ROW_BYTES + 4 * q;
    for (int n = 0; n < share.tiles; ++n) {
        const int stage = n % STAGES, turn = n % TURNS;
        float score[SCORES];
        barrier_wait(s.full[stage], n / STAGES);
        publish();
        scores_of(s, stage, score);
        const int left = share.end - share.begin - n * ROWS;
        float best[2] = {top[0], top[1]};
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& v = score[4 * j + i];
                v = j * 8 + 2 * q + i % 2 < left ? v * scale : -INF;
                best[i / 2] = fmaxf(best[i / 2], v);
            }
        float old[2], more[2] = {0.f, 0.f};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            best[h] = fmaxf(best[h], __shfl_xor_sync(FULL, best[h], 1));
            best[h] = fmaxf(best[h], __shfl_xor_sync(FULL, best[h], 2));
            old[h] = __expf(top[h] - best[h]);
            top[h] = best[h];
        }
        u32 packed[SCORES / 2];
#pragma unroll
        for (int j = 0; j < SCORES / 2; ++j) {
            const __nv_bfloat162 both = __floats2bfloat162_rn(__expf(score[2 * j] - best[j % 2]), __expf(score[2 * j + 1] - best[j % 2]));
            packed[j] = *reinterpret_cast<const u32*>(&both);
            more[j % 2] += __uint_as_float(packed[j] << 16) + __uint_as_float(packed[j] & 0xffff0000u);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            more[h] += __shfl_xor_sync(FULL, more[h], 1);
            more[h] += __shfl_xor_sync(FULL, more[h], 2);
            sum[h] = sum[h] * old[h] + more[h];
        }
#pragma unroll
        for (int j = 0; j < SCORES / 2; ++j) {
            const u32 to = weights + j % 2 * 8 * ROW_BYTES + ((turn * (ROWS / 8) + j / 2 ^ lane / 4) << 4);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(packed[j]) : "memory");
        }
        if (q == 0) s.keep[turn][row] = old[0], s.keep[turn][row + 8] = old[1];
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(s.weighted[turn]);
        // The rows before these have been summed, or soon will be: their place is free.
        if (n > 0) barrier_wait(s.used[(n - 1) % STAGES], (n - 1) / STAGES);
        if (n > 0 && n - 1 + STAGES < share.tiles) ask(s, share, n - 1 + STAGES);
    }
    if (q == 0) s.seen[row] = make_float2(top[0], sum[0]), s.seen[row + 8] = make_float2(top[1], sum[1]);
}

// A warpgroup that sums 256 columns.
__device__ __forceinline__ void sum_values(Shared& s, const Share& share, int half, float (&acc)[SUMS]) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * 16 + lane / 4;
    for (int n = 0; n < share.tiles; ++n) {
        const int stage = n % STAGES, turn = n % TURNS;
        barrier_wait(s.full[stage], n / STAGES);
        barrier_wait(s.weighted[turn], n / TURNS);
        publish();
        const float low = s.keep[turn][row], high = s.keep[turn][row + 8];
        if (__any_sync(FULL, low != 1.f || high != 1.f))
#pragma unroll
            for (int i = 0; i < SUMS; ++i) acc[i] *= i / 2 % 2 ? high : low;
        const u64 weight = operand(shared_address(s.weights) + turn * ROWS * 2, 0);
        const u64 value = operand(shared_address(s.tiles[stage]) + half * (VALUE / 2 / BLOCK_COLS) * TILE_BLOCK, TILE_BLOCK);
        products_begin(acc);
#pragma unroll
        for (int k = 0; k < ROWS / 16; ++k) product_256<1>(acc, further(weight, k * 32), further(value, k * 16 * ROW_BYTES));
        products_end(acc);
        __syncwarp();
        if (lane == 0) barrier_arrive(s.used[stage]);
    }
}

// Where a thread's sums lie for the other blocks of the cluster: in the place of the tiles.
__device__ __forceinline__ float4* room(Shared& s) { return reinterpret_cast<float4*>(s.tiles); }
static_assert(sizeof(float4) * SUMS / 4 * 2 * GROUP <= sizeof(Shared::tiles));

// The splits of a token are the blocks of a cluster: each merges a part of the columns, over all splits in order.
template <int CLUSTER>
__device__ __forceinline__ void merge_cluster(Shared& s, const float (&acc)[SUMS], bf16* out, int held, int group) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * 16 + lane / 4, rank = cluster_rank();
    if (group < 2)
#pragma unroll
        for (int j = 0; j < SUMS / 4; ++j) room(s)[j * 2 * GROUP + threadIdx.x] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    cluster_barrier();
    if (group < 2) {
        float factor[2][CLUSTER];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float2 seen[CLUSTER];
            float top = -INF, sum = 0.f;
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) seen[r] = cluster_load(&s.seen[row + 8 * h], r), top = fmaxf(top, seen[r].x);
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) factor[h][r] = __expf(seen[r].x - top), sum += seen[r].y * factor[h][r];
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) factor[h][r] /= sum;
        }
        constexpr int PART = SUMS / 4 / CLUSTER;
        float total[PART][4] = {};
#pragma unroll
        for (int j = 0; j < PART; ++j)
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) {
                const float4 v = cluster_load(&room(s)[(rank * PART + j) * 2 * GROUP + threadIdx.x], r);
                total[j][0] += v.x * factor[0][r], total[j][1] += v.y * factor[0][r], total[j][2] += v.z * factor[1][r], total[j][3] += v.w * factor[1][r];
            }
#pragma unroll
        for (int j = 0; j < PART; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (row + 8 * h < held)
                    *reinterpret_cast<__nv_bfloat162*>(out + (row + 8 * h) * VALUE + group * (VALUE / 2) + (rank * PART + j) * 8 + lane % 4 * 2) =
                        __floats2bfloat162_rn(total[j][2 * h], total[j][2 * h + 1]);
    }
    cluster_barrier();
}

// One block's part. `partial` and `states` as in decode.cu, where splits are not the blocks of a cluster.
template <int CLUSTER>
__device__ __forceinline__ void attend(const bf16* q, const bf16* cache, bf16* out, float* partial, float2* states, const SequenceRows* sequences, int sequence_count,
                                       int heads, float scale, int splits) {
    take_turn();
    extern __shared__ __align__(1024) u8 shared[];
    Shared& s = *reinterpret_cast<Shared*>(shared);
    const int t = blockIdx.x, head = blockIdx.y * HEADS, held = min(HEADS, heads - head), group = threadIdx.x / GROUP;
    const SequenceRows at = sequences[sequence_of(sequences, sequence_count, t)];
    const int last = at.past + t - at.row_start + 1, rows = ((last + splits - 1) / splits + ROWS - 1) / ROWS * ROWS;
    Share share{cache + (size_t)at.cache_start * KEY, (int)blockIdx.z * rows, min(last, ((int)blockIdx.z + 1) * rows), 0};
    share.tiles = max(0, (share.end - share.begin + ROWS - 1) / ROWS);
    const size_t first = (size_t)t * heads + head;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(s.full[i], GROUP), barrier_init(s.used[i], 2 * GROUP / WARP);
        for (int i = 0; i < TURNS; ++i) barrier_init(s.weighted[i], GROUP / WARP);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = threadIdx.x; i < HEADS * KEY / 8; i += THREADS) {
        const int row = i / (KEY / 8), piece = i % (KEY / 8);
        copy16(shared_address(s.queries) + piece / 8 * HEADS * ROW_BYTES + swizzled(row, piece % 8),
               q + (first + (row < held ? row : 0)) * KEY + piece * 8, row < held);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    if (group == 2)
        for (int n = 0; n < min(STAGES, share.tiles); ++n) ask(s, share, n);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    publish();
    __syncthreads();
    float acc[SUMS];
    if (group == 2) {
        score_rows(s, share, scale);
    } else {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) acc[i] = 0.f;
        sum_values(s, share, group, acc);
    }
    // Everybody is done with the tiles, and the scorers have left what they saw.
    __syncthreads();
    if (CLUSTER > 1) return merge_cluster<CLUSTER>(s, acc, out + first * VALUE, held, group);
    if (group == 2) {
        const int mine = threadIdx.x % GROUP;
        if (splits > 1 && mine < held) states[(first + mine) * splits + blockIdx.z] = s.seen[mine];
        return;
    }
    const int lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int mine = row + 8 * h, col = group * (VALUE / 2) + lane % 4 * 2;
        if (mine >= held) continue;
        if (splits == 1) {
            const float factor = 1.f / s.seen[mine].y;
            bf16* to = out + (first + mine) * VALUE + col;
#pragma unroll
            for (int j = 0; j < SUMS / 4; ++j)
                *reinterpret_cast<__nv_bfloat162*>(to + j * 8) = __floats2bfloat162_rn(acc[4 * j + 2 * h] * factor, acc[4 * j + 2 * h + 1] * factor);
        } else {
            float* to = partial + ((first + mine) * splits + blockIdx.z) * VALUE + col;
#pragma unroll
            for (int j = 0; j < SUMS / 4; ++j) *reinterpret_cast<float2*>(to + j * 8) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
        }
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ATTEND(CLUSTER) attend<CLUSTER>(q, cache, out, partial, states, sequences, sequence_count, heads, scale, splits);
#else
#define ATTEND(CLUSTER) __trap();
#endif
// Grid: (T, ceil(heads / 64), splits); `attend_mla_hopper_2` has two splits, which it merges. Other architectures have no launch of these.
#define KERNEL(NAME, CLUSTER, ATTRIBUTE)                                                                                                              \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(THREADS, 1) NAME(const bf16* q, const bf16* cache, bf16* out, float* partial, float2* states, \
                                                                            const SequenceRows* sequences, int sequence_count, int heads, float scale, int splits) { \
        ATTEND(CLUSTER)                                                                                                                              \
    }
KERNEL(attend_mla_hopper, 1, )
KERNEL(attend_mla_hopper_2, 2, __cluster_dims__(1, 1, 2))
