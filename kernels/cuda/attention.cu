// Attention over the paged-by-sequence cache: rotation, cache writes, scores with online softmax, for MLA (absorbed and expanded) and GQA.
#include "common.cuh"

constexpr int WARPS = 8;
// Widest value a lane accumulates: 32 lanes * 16 = 512 elements (MLA's latent).
constexpr int PER_LANE = 16;

// Rotates a head's first `dim` elements held in `v` (float). `frequencies[dim / 2]`; cos and sin are multiplied by `factor`.
// Interleaved pairs come out as halves. `out` may be `v` only for rotate-half.
// The angle is taken in double: at position 262143 a float product would be off by a hundredth of a radian.
__device__ __forceinline__ void rotate_pair(float a, float b, int position, double frequency, float factor, float* first, float* second) {
    const double turns = position * frequency * 0.15915494309189535;
    float s, c;
    sincospif(float(2.0 * (turns - floor(turns))), &s, &c);
    *first = (a * c - b * s) * factor;
    *second = (b * c + a * s) * factor;
}

// MLA: norms of the compressed query (block row 0) and key-value (block row 1). Grid: (T, 2). Shared memory: max(q_lora, kv_lora) floats.
extern "C" __global__ void mla_norm(const bf16* in, const bf16* q_weight, const bf16* kv_weight, bf16* q_out, bf16* latent, int q_lora, int kv_lora, int rope,
                                    float eps) {
    take_turn();
    extern __shared__ float row[];
    const bf16* x = in + (size_t)blockIdx.x * (q_lora + kv_lora + rope);
    {
        const int part = blockIdx.y, n = part == 0 ? q_lora : kv_lora;
        if (n == 0) return;
        const bf16 *from = part == 0 ? x : x + q_lora, *weight = part == 0 ? q_weight : kv_weight;
        bf16* to = part == 0 ? q_out + (size_t)blockIdx.x * q_lora : latent + (size_t)blockIdx.x * (kv_lora + rope);
        float square = 0.f;
        for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = f32(from[i]); square += row[i] * row[i]; }
        const float scale = rsqrtf(block_sum(square) / n + eps);
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = to_bf16(f32(to_bf16(row[i] * scale)) * f32(weight[i]));
        if (part == 0) return;
    }
    for (int i = threadIdx.x; i < rope; i += blockDim.x) latent[(size_t)blockIdx.x * (kv_lora + rope) + kv_lora + i] = x[q_lora + kv_lora + i];
}

// MLA: rotates the rope part of every query head and of the latent, appends the latent to the cache. Grid: (T, heads + 1); head `heads` is the latent.
extern "C" __global__ void mla_rope(const bf16* q_in, const bf16* latent, const int* positions, bf16* q_out, bf16* cache, const double* frequencies,
                                    const SequenceRows* sequences, int sequence_count, int heads, int nope, int kv_lora, int rope, int interleaved, float factor) {
    take_turn();
    const int t = blockIdx.x, head = blockIdx.y, position = positions[t];
    const bf16* from;
    bf16* to;
    int plain;
    if (head < heads) {
        plain = nope;
        const size_t start = ((size_t)t * heads + head) * (nope + rope);
        from = q_in + start, to = q_out + start;
    } else {
        plain = kv_lora;
        const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
        from = latent + (size_t)t * (kv_lora + rope);
        to = cache + (size_t)(s.cache_start + s.past + t - s.row_start) * (kv_lora + rope);
    }
    for (int i = threadIdx.x; i < plain; i += blockDim.x) to[i] = from[i];
    for (int i = threadIdx.x; i < rope / 2; i += blockDim.x) {
        const float a = f32(from[plain + (interleaved ? 2 * i : i)]), b = f32(from[plain + (interleaved ? 2 * i + 1 : i + rope / 2)]);
        float first, second;
        rotate_pair(a, b, position, frequencies[i], factor, &first, &second);
        to[plain + i] = to_bf16(first);
        to[plain + rope / 2 + i] = to_bf16(second);
    }
}

// MLA: q_latent[T, heads, kv_lora | rope] = q_nope W_UK, rope passes. kv_b[heads, nope + v, kv_lora]. A lane sums 8 columns, a warp its share of
// the rows, for TOKENS tokens at once. Grid: (heads, ceil(kv_lora / 256), ceil(T / TOKENS)); shared: WARPS * 256 * TOKENS floats.
template <int TOKENS>
__device__ __forceinline__ void absorb_query(const bf16* q, const bf16* kv_b, bf16* out, int tokens, int heads, int nope, int rope, int v_dim, int kv_lora) {
    extern __shared__ float sums[];
    const int head = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, col = (blockIdx.y * WARP + lane) * 8, first = blockIdx.z * TOKENS;
    const bf16* w = kv_b + (size_t)head * (nope + v_dim) * kv_lora;
    float acc[TOKENS][8] = {};
    if (col < kv_lora)
#pragma unroll 4
        for (int i = warp; i < nope; i += WARPS) {
            float row[8];
            load8(w + (size_t)i * kv_lora + col, row);
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) {
                const float x = first + t < tokens ? f32(q[((size_t)(first + t) * heads + head) * (nope + rope) + i]) : 0.f;
#pragma unroll
                for (int c = 0; c < 8; ++c) acc[t][c] += x * row[c];
            }
        }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
#pragma unroll
        for (int c = 0; c < 8; ++c) sums[(warp * TOKENS + t) * 256 + c * WARP + lane] = acc[t][c];
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * 256; i += blockDim.x) {
        const int t = first + i / 256, at = (blockIdx.y * WARP + i % WARP) * 8 + i % 256 / WARP;
        if (t >= tokens || at >= kv_lora) continue;
        float sum = 0.f;
        for (int p = 0; p < WARPS; ++p) sum += sums[p * TOKENS * 256 + i];
        out[((size_t)t * heads + head) * (kv_lora + rope) + at] = to_bf16(sum);
    }
    if (blockIdx.y == 0)
        for (int i = threadIdx.x; i < TOKENS * rope; i += blockDim.x) {
            const int t = first + i / rope, at = i % rope;
            if (t < tokens) out[((size_t)t * heads + head) * (kv_lora + rope) + kv_lora + at] = q[((size_t)t * heads + head) * (nope + rope) + nope + at];
        }
}
extern "C" __global__ void mla_absorb_query_1(const bf16* q, const bf16* kv_b, bf16* out, int tokens, int heads, int nope, int rope, int v_dim, int kv_lora) {
    take_turn();
    absorb_query<1>(q, kv_b, out, tokens, heads, nope, rope, v_dim, kv_lora);
}
extern "C" __global__ void mla_absorb_query_4(const bf16* q, const bf16* kv_b, bf16* out, int tokens, int heads, int nope, int rope, int v_dim, int kv_lora) {
    take_turn();
    absorb_query<4>(q, kv_b, out, tokens, heads, nope, rope, v_dim, kv_lora);
}

// What an online softmax has seen.
struct Running {
    float top, sum;
};

// Merges the warps' running softmaxes and writes value / sum. `values` in shared memory: WARPS * width floats.
__device__ __forceinline__ void merge(Running mine, const float* acc, int per_lane, int width, float sink, bool has_sink, float* values, bf16* out) {
    __shared__ Running state[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) state[warp] = mine;
    for (int j = 0; j < per_lane; ++j)
        if (lane + j * WARP < width) values[warp * width + lane + j * WARP] = acc[j];
    __syncthreads();
    float top = has_sink ? sink : -INF;
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, state[w].top);
    float sum = has_sink ? __expf(sink - top) : 0.f;
    for (int w = 0; w < WARPS; ++w) sum += state[w].sum > 0.f ? state[w].sum * __expf(state[w].top - top) : 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = 0.f;
        for (int w = 0; w < WARPS; ++w)
            if (state[w].sum > 0.f) v += values[w * width + i] * __expf(state[w].top - top);
        out[i] = to_bf16(v / sum);
    }
}

// Scores of a query against cache rows first..last, values accumulated. `key(row)` and `value(row)` give pointers; `extra` is a second part of the key.
template <class Key, class Extra, class Value>
__device__ __forceinline__ Running attend(const float* query, int key_width, int extra_width, int value_width, int first, int last, float scale, Key key, Extra extra,
                                          Value value, float* acc) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Running r{-INF, 0.f};
    for (int j = 0; j < PER_LANE; ++j) acc[j] = 0.f;
    for (int row = first + warp; row < last; row += WARPS) {
        const bf16 *k = key(row), *e = extra(row);
        float dot = 0.f;
        for (int i = lane; i < key_width; i += WARP) dot += query[i] * f32(k[i]);
        for (int i = lane; i < extra_width; i += WARP) dot += query[key_width + i] * f32(e[i]);
        const float score = warp_sum(dot) * scale, top = fmaxf(r.top, score);
        const float keep = __expf(r.top - top), p = __expf(score - top);
        r = Running{top, r.sum * keep + p};
        const bf16* v = value(row);
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j)
            if (lane + j * WARP < value_width) acc[j] = acc[j] * keep + p * f32(v[lane + j * WARP]);
    }
    return r;
}

// MLA absorbed: o_latent[T, heads, kv_lora]. Grid: (T, heads), WARPS warps. Shared: (kv_lora + rope) + WARPS * kv_lora floats.
extern "C" __global__ void mla_decode(const bf16* q, const bf16* cache, bf16* out, const SequenceRows* sequences, int sequence_count, int heads, int kv_lora, int rope,
                                      float scale) {
    take_turn();
    extern __shared__ float shared[];
    const int t = blockIdx.x, head = blockIdx.y, width = kv_lora + rope;
    const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
    for (int i = threadIdx.x; i < width; i += blockDim.x) shared[i] = f32(q[((size_t)t * heads + head) * width + i]);
    __syncthreads();
    const bf16* rows = cache + (size_t)s.cache_start * width;
    auto row_of = [&](int row) { return rows + (size_t)row * width; };
    float acc[PER_LANE];
    const Running r = attend(shared, width, 0, kv_lora, 0, s.past + t - s.row_start + 1, scale, row_of, row_of, row_of, acc);
    merge(r, acc, PER_LANE, kv_lora, 0.f, false, shared + width, out + ((size_t)t * heads + head) * kv_lora);
}

// MLA expanded: o[T, heads, v]. kv rows are packed sequence after sequence. Shared: (nope + rope) + WARPS * v floats.
extern "C" __global__ void mla_prefill(const bf16* q, const bf16* kv, const bf16* cache, bf16* out, const SequenceRows* sequences, int sequence_count, int heads, int nope,
                                       int rope, int v_dim, int kv_lora, float scale) {
    take_turn();
    extern __shared__ float shared[];
    const int t = blockIdx.x, head = blockIdx.y, index = sequence_of(sequences, sequence_count, t);
    const SequenceRows s = sequences[index];
    size_t packed = 0;
    for (int i = 0; i < index; ++i) packed += sequences[i].past + sequences[i].rows;
    for (int i = threadIdx.x; i < nope + rope; i += blockDim.x) shared[i] = f32(q[((size_t)t * heads + head) * (nope + rope) + i]);
    __syncthreads();
    const size_t stride = (size_t)heads * (nope + v_dim);
    const bf16* rows = kv + packed * stride + (size_t)head * (nope + v_dim);
    const bf16* ropes = cache + (size_t)s.cache_start * (kv_lora + rope) + kv_lora;
    auto key = [&](int row) { return rows + row * stride; };
    auto extra = [&](int row) { return ropes + (size_t)row * (kv_lora + rope); };
    auto value = [&](int row) { return rows + row * stride + nope; };
    float acc[PER_LANE];
    const Running r = attend(shared, nope, rope, v_dim, 0, s.past + t - s.row_start + 1, scale, key, extra, value, acc);
    merge(r, acc, PER_LANE, v_dim, 0.f, false, shared + nope + rope, out + ((size_t)t * heads + head) * v_dim);
}

// GQA: per-head norms, rotation, cache append. in[T, q | k | v], cache rows [k | v]. Grid: (T, heads + 2 * kv_heads). Shared: head_dim floats.
extern "C" __global__ void qkv_prepare(const bf16* in, const int* positions, bf16* cache, const bf16* q_weight, const bf16* k_weight, bf16* q_out, const double* frequencies,
                                       const SequenceRows* sequences, int sequence_count, int heads, int kv_heads, int head_dim, int rope, int interleaved, float factor,
                                       float eps) {
    take_turn();
    extern __shared__ float row[];
    const int t = blockIdx.x, unit = blockIdx.y;
    const bf16* from = in + ((size_t)t * (heads + 2 * kv_heads) + unit) * head_dim;
    const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
    bf16* cache_row = cache + (size_t)(s.cache_start + s.past + t - s.row_start) * 2 * kv_heads * head_dim;
    bf16* to = unit < heads ? q_out + ((size_t)t * heads + unit) * head_dim : cache_row + (size_t)(unit - heads) * head_dim;
    if (unit >= heads + kv_heads) {
        for (int i = threadIdx.x; i < head_dim; i += blockDim.x) to[i] = from[i];
        return;
    }
    const bf16* weight = unit < heads ? q_weight : k_weight;
    float square = 0.f;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) { row[i] = f32(from[i]); square += row[i] * row[i]; }
    if (weight) {
        const float scale = rsqrtf(block_sum(square) / head_dim + eps);
        for (int i = threadIdx.x; i < head_dim; i += blockDim.x) row[i] = f32(to_bf16(f32(to_bf16(row[i] * scale)) * f32(weight[i])));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rope / 2; i += blockDim.x) {
        float first, second;
        rotate_pair(row[interleaved ? 2 * i : i], row[interleaved ? 2 * i + 1 : i + rope / 2], positions[t], frequencies[i], factor, &first, &second);
        to[i] = to_bf16(first);
        to[rope / 2 + i] = to_bf16(second);
    }
    for (int i = rope + threadIdx.x; i < head_dim; i += blockDim.x) to[i] = to_bf16(row[i]);
}

// GQA: o[T, heads, head_dim]. Grid: (T, heads), WARPS warps. Shared: head_dim + WARPS * head_dim floats. A window of 0 is none.
extern "C" __global__ void gqa_attention(const bf16* q, const bf16* cache, const bf16* sinks, bf16* out, const SequenceRows* sequences, int sequence_count, int heads,
                                         int kv_heads, int head_dim, int window, float scale) {
    take_turn();
    extern __shared__ float shared[];
    const int t = blockIdx.x, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) shared[i] = f32(q[((size_t)t * heads + head) * head_dim + i]);
    __syncthreads();
    const size_t stride = (size_t)2 * kv_heads * head_dim;
    const bf16* rows = cache + (size_t)s.cache_start * stride + (size_t)kv_head * head_dim;
    auto key = [&](int row) { return rows + row * stride; };
    auto value = [&](int row) { return rows + row * stride + (size_t)kv_heads * head_dim; };
    const int last = s.past + t - s.row_start + 1, first = window > 0 ? max(0, last - window) : 0;
    float acc[PER_LANE];
    const Running r = attend(shared, head_dim, 0, head_dim, first, last, scale, key, key, value, acc);
    merge(r, acc, PER_LANE, head_dim, sinks ? f32(sinks[head]) : 0.f, sinks != nullptr, shared + head_dim, out + ((size_t)t * heads + head) * head_dim);
}

// From -limit to limit; what is not a number stays so.
static __device__ bf16 clipped(float x, float limit) { return to_bf16(x > limit ? limit : x < -limit ? -limit : x); }

// Full-width RMSNorm of the q and of the k part of packed projections (OLMoE); all parts are clipped, infinity leaves them alone.
// in[T, q | k | v]. Shared: max(q, k) floats.
extern "C" __global__ void qk_norm(const bf16* in, const bf16* q_weight, const bf16* k_weight, bf16* out, int q, int k, int v, float eps, float clip) {
    take_turn();
    extern __shared__ float row[];
    const size_t start = (size_t)blockIdx.x * (q + k + v);
    for (int part = 0; part < 2; ++part) {
        const int n = part == 0 ? q : k, offset = part == 0 ? 0 : q;
        const bf16* weight = part == 0 ? q_weight : k_weight;
        float square = 0.f;
        for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = f32(in[start + offset + i]); square += row[i] * row[i]; }
        const float scale = rsqrtf(block_sum(square) / n + eps);
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[start + offset + i] = clipped(f32(to_bf16(row[i] * scale)) * f32(weight[i]), clip);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < v; i += blockDim.x) out[start + q + k + i] = clipped(f32(in[start + q + k + i]), clip);
}
