// Norms, sums, activations, embedding, row selection, greedy choice. One block a row unless said otherwise.
#include "activation.cuh"
#include "norm.cuh"
#include "shape.cuh"

// out[T, H] = table[ids[t] - vocab_start], zeros for ids of other ranks' slices. Eight elements a thread where rows are whole eights: a row comes from
// memory, so all of it is asked for at once.
extern "C" __global__ void embed(const int* ids, const bf16* table, bf16* out, int hidden, int vocab_start, int vocab_rows) {
    take_turn();
    const int row = blockIdx.x, local = ids[row] - vocab_start;
    const bool held = local >= 0 && local < vocab_rows;
    if (hidden % 8 == 0) {
        for (int i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8)
            *reinterpret_cast<uint4*>(out + (size_t)row * hidden + i) = held ? *reinterpret_cast<const uint4*>(table + (size_t)local * hidden + i) : make_uint4(0, 0, 0, 0);
        return;
    }
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) out[(size_t)row * hidden + i] = held ? table[(size_t)local * hidden + i] : to_bf16(0.f);
}

// y = rmsnorm(row) * w, `row` in shared memory; `square` is this thread's share of the squares.
__device__ __forceinline__ void norm_row(const float* row, float square, const bf16* weight, bf16* out, int n, float eps) {
    const float scale = rsqrtf(block_sum(square) / n + eps);
    if (n % 8 != 0) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = to_bf16(f32(to_bf16(row[i] * scale)) * f32(weight[i]));
        return;
    }
    for (int i = threadIdx.x * 8; i < n; i += blockDim.x * 8) {
        float w[8];
        load8(weight + i, w);
        store_normed(out + i, row + i, w, scale);
    }
}
// Whether eight elements a thread are the whole row, which then stays in registers.
__device__ __forceinline__ bool held_by_block(int n) { return n % 8 == 0 && n <= (int)blockDim.x * 8; }
// The kernel's turn, with this thread's weights of a row that the block holds: they come from memory, the row itself from the cache.
__device__ __forceinline__ void take_turn_with(const bf16* weight, int n, float (&w)[8]) {
    admit_next();
    if (held_by_block(n) && threadIdx.x * 8 < n) load8(weight + threadIdx.x * 8, w);
    await_previous();
}

// y = rmsnorm(x) * w. Dynamic shared memory: `n` floats, none where the block holds the row.
extern "C" __global__ void rms_norm(const bf16* x, const bf16* weight, bf16* y, int n, float eps) {
    float w[8];
    take_turn_with(weight, n, w);
    extern __shared__ float row[];
    const size_t start = (size_t)blockIdx.x * n;
    float square = 0.f;
    if (held_by_block(n)) {
        const int i = threadIdx.x * 8;
        float v[8];
        if (i < n) {
            load8(x + start + i, v);
#pragma unroll
            for (int j = 0; j < 8; ++j) square += v[j] * v[j];
        }
        const float scale = rsqrtf(block_sum(square) / n + eps);
        if (i < n) store_normed(y + start + i, v, w, scale);
        return;
    }
    if (n % 8 == 0)
        for (int i = threadIdx.x * 8; i < n; i += blockDim.x * 8) {
            float v[8];
            load8(x + start + i, v);
#pragma unroll
            for (int j = 0; j < 8; ++j) { row[i + j] = v[j]; square += v[j] * v[j]; }
        }
    else
        for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = f32(x[start + i]); square += row[i] * row[i]; }
    __syncthreads();
    norm_row(row, square, weight, y + start, n, eps);
}

// Eight elements of delta + residual, as bf16 has them; returns the sum of their squares.
__device__ __forceinline__ float add8(const bf16* delta, const bf16* residual, bf16* sum, float (&a)[8]) {
    float b[8];
    load8(delta, a);
    load8(residual, b);
    return add8(a, b, sum);
}

// sum = delta + residual; y = rmsnorm(sum) * w. Dynamic shared memory: `n` floats, none where the block holds the row.
extern "C" __global__ void add_rms_norm(const bf16* delta, const bf16* residual, const bf16* weight, bf16* y, bf16* sum, int n, float eps) {
    float w[8];
    take_turn_with(weight, n, w);
    extern __shared__ float row[];
    const size_t start = (size_t)blockIdx.x * n;
    float square = 0.f;
    if (held_by_block(n)) {
        const size_t at = start + threadIdx.x * 8;
        const bool mine = threadIdx.x * 8 < n;
        float a[8];
        if (mine) square = add8(delta + at, residual + at, sum + at, a);
        const float scale = rsqrtf(block_sum(square) / n + eps);
        if (mine) store_normed(y + at, a, w, scale);
        return;
    }
    if (n % 8 == 0)
        for (int i = threadIdx.x * 8; i < n; i += blockDim.x * 8) {
            float a[8];
            square += add8(delta + start + i, residual + start + i, sum + start + i, a);
#pragma unroll
            for (int j = 0; j < 8; ++j) row[i + j] = a[j];
        }
    else
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const bf16 s = to_bf16(f32(delta[start + i]) + f32(residual[start + i]));
            sum[start + i] = s;
            row[i] = f32(s);
            square += row[i] * row[i];
        }
    __syncthreads();
    norm_row(row, square, weight, y + start, n, eps);
}

// Element-wise over `n` elements, grid-stride.
extern "C" __global__ void add(const bf16* a, const bf16* b, bf16* out, u64 n) {
    take_turn();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) out[i] = to_bf16(f32(a[i]) + f32(b[i]));
}

// out = y * sigmoid(score); one score a row, or `score_width == n` of them.
extern "C" __global__ void sigmoid_scale(const bf16* y, const bf16* score, bf16* out, int n, int score_width) {
    take_turn();
    const size_t start = (size_t)blockIdx.x * n, scores = (size_t)blockIdx.x * score_width;
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[start + i] = to_bf16(f32(y[start + i]) * sigmoid(f32(score[scores + (score_width == n ? i : 0)])));
}

// h[T, n] from gate_up[T, gate | up]. Grid: (T, chunks).
extern "C" __global__ void gated_activation(const bf16* gate_up, bf16* h, int n, int clamped, float alpha, float limit) {
    take_turn();
    const size_t from = (size_t)blockIdx.x * 2 * n, to = (size_t)blockIdx.x * n;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < n; i += gridDim.y * blockDim.x) h[to + i] = to_bf16(activate(f32(gate_up[from + i]), f32(gate_up[from + n + i]), clamped, alpha, limit));
}

// out[r] = x[rows[r]]: the last new token of sequence `r`.
extern "C" __global__ void select_last(const bf16* x, const SequenceRows* sequences, bf16* out, int n) {
    take_turn();
    const SequenceRows s = sequences[blockIdx.x];
    const size_t from = (size_t)(s.row_start + s.rows - 1) * n, to = (size_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[to + i] = x[from + i];
}

// ids[r] = index of the greatest logit of row `r`, the lowest among equals; -1 where any of them is no finite number. The blocks of a cluster take a
// part of the row each. Grid: (PARTS, T).
constexpr int PARTS = 8;
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) argmax(const bf16* logits, int* ids, int n) {
    take_turn();
    __shared__ float best_value[WARP];
    __shared__ int best_index[WARP];
    // Value, index, and whether a logit of the part is not finite.
    __shared__ float4 best;
    const int share = (n + 8 * PARTS - 1) / (8 * PARTS) * 8, first = cluster_rank() * share, last = min(n, first + share);
    const bf16* row = logits + (size_t)blockIdx.y * n;
    float value = -INF;
    int index = 0x7fffffff;
    // One logit that is no finite number says that the others are not to be trusted either.
    bool wrong = false;
    // A thread sees ascending indices, so the first of equals stays.
    if (n % 8 == 0)
        for (int i = first + threadIdx.x * 8; i < last; i += blockDim.x * 8) {
            float v[8];
            load8(row + i, v);
#pragma unroll
            for (int j = 0; j < 8; ++j)
            {
                wrong |= !(fabsf(v[j]) < INF);
                if (v[j] > value) { value = v[j]; index = i + j; }
            }
        }
    else
        for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
            const float v = f32(row[i]);
            wrong |= !(fabsf(v) < INF);
            if (v > value) { value = v; index = i; }
        }
    greatest(value, index);
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if (lane == 0) { best_value[threadIdx.x / WARP] = value; best_index[threadIdx.x / WARP] = index; }
    wrong = __syncthreads_or(wrong);
    if (threadIdx.x < WARP) {
        value = lane < warps ? best_value[lane] : -INF;
        index = lane < warps ? best_index[lane] : 0x7fffffff;
        greatest(value, index);
        if (lane == 0) best = make_float4(value, __int_as_float(index), wrong ? 1.f : 0.f, 0.f);
    }
    cluster_barrier();
    if (cluster_rank() == 0 && threadIdx.x == 0) {
        // Parts follow each other, so the first of equals stays.
        for (int r = 1; r < PARTS; ++r) {
            const float4 other = cluster_load(&best, r);
            if (other.x > value) { value = other.x; index = __float_as_int(other.y); }
            wrong |= other.z != 0.f;
        }
        ids[blockIdx.y] = wrong || index == 0x7fffffff ? -1 : index;
    }
    cluster_barrier();
}
