// Projections of 17 token rows and more on Hopper's warpgroup products, where no matrix library takes them: heads side by side, and results in
// float. Tiles of 64 * GROUPS outputs by 64 tokens, both operands staged in shared memory. y[T, N] = x[T, K] w[N, K]^T (+ bias).
#include "shape.cuh"
#include "wgmma.cuh"

constexpr int TILE = 64, STAGES = 4, BLOCK_BYTES = TILE * ROW_BYTES;

// A thread copies piece `tid % 8` of rows tid / 8 + 16 GROUPS j. TURNED: weights [K, N], a block of 64 outputs after the other.
template <int GROUPS, bool TURNED>
struct Copier {
    static constexpr int STEP = 16 * GROUPS, ROWS = TILE / STEP, STAGE = (GROUPS + 1) * BLOCK_BYTES;
    const bf16 *weights[4], *tokens[ROWS];
    bool weight_there[4], token_there[ROWS];
    int n;
    __device__ __forceinline__ void issue_weights(u32 stage, int step, int k) const {
        const int piece = threadIdx.x % 8, row = threadIdx.x / 8, col = step * TILE + piece * 8;
        if (TURNED) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = row + STEP * j, r = at % TILE, in = step * TILE + r;
                copy16(stage + at / TILE * BLOCK_BYTES + swizzled(r, piece), weights[j] + (in < k ? (size_t)step * TILE * n : 0), in < k && weight_there[j]);
            }
            return;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) copy16(stage + swizzled(row + STEP * j, piece), weights[j] + (col < k ? col : 0), col < k && weight_there[j]);
    }
    __device__ __forceinline__ void issue_tokens(u32 stage, int step, int k) const {
        const int piece = threadIdx.x % 8, row = threadIdx.x / 8, col = step * TILE + piece * 8;
#pragma unroll
        for (int j = 0; j < ROWS; ++j) copy16(stage + GROUPS * BLOCK_BYTES + swizzled(row + STEP * j, piece), tokens[j] + (col < k ? col : 0), col < k && token_there[j]);
    }
};

template <int GROUPS, int CLUSTER, bool TURNED>
__device__ __forceinline__ void project(const bf16* x, const bf16* w, const bf16* bias, void* y, const Shape& s) {
    extern __shared__ __align__(1024) u8 shared[];
    using C = Copier<GROUPS, TURNED>;
    admit_next();
    const int lane = threadIdx.x % WARP, group = threadIdx.x / GROUP, batch = blockIdx.z;
    const int out = blockIdx.x / CLUSTER * TILE * GROUPS, row = blockIdx.y * TILE, split = CLUSTER == 1 ? 0 : cluster_rank();
    C c;
    c.n = s.n;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int r = threadIdx.x / 8 + C::STEP * j;
        const int o = TURNED ? out + r / TILE * TILE + threadIdx.x % 8 * 8 : out + r;
        c.weight_there[j] = o < s.n;
        c.weights[j] = w + batch * s.w_batch + (TURNED ? (size_t)(r % TILE) * s.n + min(o, s.n - 8) : (size_t)min(o, s.n - 1) * s.k);
    }
    const int steps = (s.k + TILE - 1) / TILE, share = (steps + CLUSTER - 1) / CLUSTER, first = split * share, last = min(steps, first + share);
    const u32 stages = shared_address(shared);
#pragma unroll
    for (int u = 0; u < STAGES - 1; ++u)
        if (first + u < last) c.issue_weights(stages + u * C::STAGE, first + u, s.k);
    await_previous();
#pragma unroll
    for (int j = 0; j < C::ROWS; ++j) {
        const int r = row + threadIdx.x / 8 + C::STEP * j;
        c.token_there[j] = r < s.rows;
        c.tokens[j] = x + (size_t)batch * s.x_batch + token_row(s, min(r, s.rows - 1)) * s.x_stride;
    }
#pragma unroll
    for (int u = 0; u < STAGES - 1; ++u) {
        if (first + u < last) c.issue_tokens(stages + u * C::STAGE, first + u, s.k);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float acc[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) acc[i] = 0.f;
    for (int step = first; step < last; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        publish();
        __syncthreads();
        const int ahead = step + STAGES - 1;
        if (ahead < last) {
            const u32 to = stages + (ahead - first) % STAGES * C::STAGE;
            c.issue_weights(to, ahead, s.k);
            c.issue_tokens(to, ahead, s.k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        const u32 at = stages + (step - first) % STAGES * C::STAGE;
        const u64 a = operand(at + group * BLOCK_BYTES, 0), b = operand(at + GROUPS * BLOCK_BYTES, 0);
        products_begin(acc);
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) product_64<1, TURNED ? 1 : 0>(acc, further(a, k * (TURNED ? 16 * ROW_BYTES : 32)), further(b, k * 32));
        products_end(acc);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    float sums[8][4];
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i / 4][i % 4] = acc[i];
    reduce_cluster<8, CLUSTER>(reinterpret_cast<float4*>(shared), sums);
    if (split != 0) return;
#pragma unroll
    for (int t = 0; t < 8; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store_result(y, bias, s, batch, row + t * 8 + lane % 4 * 2 + i % 2, out + group * TILE + threadIdx.x % GROUP / WARP * 16 + lane / 4 + i / 2 * 8, sums[t][i]);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PROJECT(GROUPS, CLUSTER, TURNED) project<GROUPS, CLUSTER, TURNED>(x, w, bias, y, SHAPE);
#else
#define PROJECT(GROUPS, CLUSTER, TURNED) __trap();
#endif
// Other architectures have no launch of these. Grid: (CLUSTER * ceil(N / (64 GROUPS)), ceil(T / 64), batch).
#define KERNEL(NAME, GROUPS, CLUSTER, ATTRIBUTE)                                                                                             \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(GROUPS * GROUP) NAME(const bf16* x, const bf16* w, const bf16* bias, void* y, SHAPE_PARAMS) { \
        PROJECT(GROUPS, CLUSTER, false)                                                                                                      \
    }
KERNEL(linear_hopper, 1, 1, )
KERNEL(linear_hopper_split, 1, 8, __cluster_dims__(8, 1, 1))

// MLA: q_latent[T, heads, N | rope] = q_nope W_UK, rope passes: the weights of a head are [K, N]. `rope` columns follow the K of a query's head.
extern "C" __global__ void __launch_bounds__(2 * GROUP) mla_absorb_query_hopper(const bf16* x, const bf16* w, const bf16* bias, void* y, SHAPE_PARAMS, int rope) {
    PROJECT(2, 1, true)
    if (blockIdx.x != 0) return;
    const int first = blockIdx.y * 64, last = min(rows, first + 64);
    for (int i = threadIdx.x; i < (last - first) * rope; i += blockDim.x) {
        const size_t row = first + i / rope, col = i % rope;
        ((bf16*)y)[row * y_stride + blockIdx.z * y_batch + n + col] = x[row * x_stride + blockIdx.z * x_batch + k + col];
    }
}
