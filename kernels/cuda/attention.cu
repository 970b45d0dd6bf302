// Attention over the paged-by-sequence cache: rotation, cache writes, scores with online softmax, for MLA (absorbed and expanded) and GQA.
#include "common.cuh"

constexpr int WARPS = 8;
// Widest value a lane accumulates: 32 lanes * 16 = 512 elements (MLA's latent).
constexpr int PER_LANE = 16;

// Sine and cosine of a position's angle, which is taken in double: at position 262143 a float product would be off by a hundredth of a radian.
struct Angle {
    float sine, cosine;
};
__device__ __forceinline__ Angle angle_of(int position, double frequency) {
    const double turns = position * frequency * 0.15915494309189535;
    Angle angle;
    sincospif(float(2.0 * (turns - floor(turns))), &angle.sine, &angle.cosine);
    return angle;
}
// Turns a pair (a, b) by an angle; both are multiplied by `factor`.
__device__ __forceinline__ void rotate_pair(float a, float b, const Angle& angle, float factor, float* first, float* second) {
    const float s = angle.sine, c = angle.cosine;
    *first = (a * c - b * s) * factor;
    *second = (b * c + a * s) * factor;
}

// MLA: norms of the compressed query (block row 0) and key-value (block row 1). Grid: (T, 2). Shared memory: max(q_lora, kv_lora) floats.
extern "C" __global__ void mla_norm(const bf16* in, const bf16* q_weight, const bf16* kv_weight, bf16* q_out, bf16* latent, int q_lora, int kv_lora, int rope,
                                    float eps) {
    extern __shared__ float row[];
    admit_next();
    const int part = blockIdx.y, n = part == 0 ? q_lora : kv_lora, at = threadIdx.x * 8;
    const bf16* weight = part == 0 ? q_weight : kv_weight;
    // Eight elements a thread, weights ahead of the kernel's turn, where that makes whole rows.
    const bool eights = (q_lora | kv_lora | rope) % 8 == 0 && n + rope <= (int)blockDim.x * 8;
    float w[8];
    if (eights && at < n) load8(weight + at, w);
    await_previous();
    const bf16 *x = in + (size_t)blockIdx.x * (q_lora + kv_lora + rope), *from = part == 0 ? x : x + q_lora;
    bf16* to = part == 0 ? q_out + (size_t)blockIdx.x * q_lora : latent + (size_t)blockIdx.x * (kv_lora + rope);
    const int copied = part == 0 ? 0 : rope;
    if (eights) {
        float v[8], square = 0.f;
        if (at < n + copied) load8(from + at, v);
        if (at < n)
#pragma unroll
            for (int j = 0; j < 8; ++j) square += v[j] * v[j];
        const float scale = rsqrtf(block_sum(square) / n + eps);
        if (at < n)
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = f32(to_bf16(v[j] * scale)) * w[j];
        if (at < n + copied) store8(to + at, v);
        return;
    }
    if (n == 0) return;
    float square = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = f32(from[i]); square += row[i] * row[i]; }
    const float scale = rsqrtf(block_sum(square) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = to_bf16(f32(to_bf16(row[i] * scale)) * f32(weight[i]));
    for (int i = threadIdx.x; i < copied; i += blockDim.x) to[n + i] = from[n + i];
}

// MLA: rotates the rope part of every query head and of the latent, appends the latent to the cache. Interleaved pairs come out as halves.
// Grid: (T, heads + 1); head `heads` is the latent. Half of `rope` is at most a block's threads.
extern "C" __global__ void mla_rope(const bf16* q_in, const bf16* latent, const int* positions, bf16* q_out, bf16* cache, const double* frequencies,
                                    const SequenceRows* sequences, int sequence_count, int heads, int nope, int kv_lora, int rope, int interleaved, float factor) {
    admit_next();
    const int t = blockIdx.x, head = blockIdx.y;
    // The last threads rotate, the first ones copy. Positions and sequences come from the host.
    const int pair = blockDim.x - 1 - threadIdx.x;
    Angle angle;
    if (pair < rope / 2) angle = angle_of(positions[t], frequencies[pair]);
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
    await_previous();
    if (pair < rope / 2) {
        const float a = f32(from[plain + (interleaved ? 2 * pair : pair)]), b = f32(from[plain + (interleaved ? 2 * pair + 1 : pair + rope / 2)]);
        float first, second;
        rotate_pair(a, b, angle, factor, &first, &second);
        to[plain + pair] = to_bf16(first);
        to[plain + rope / 2 + pair] = to_bf16(second);
    }
    for (int i = threadIdx.x; i < plain; i += blockDim.x) to[i] = from[i];
}

// MLA: q_latent[T, heads, kv_lora | rope] = q_nope W_UK, rope passes. kv_b[heads, nope + v, kv_lora]. A lane sums 8 columns, a warp its share of
// the rows, for TOKENS tokens at once. Grid: (heads, ceil(kv_lora / 256), ceil(T / TOKENS)); shared: WARPS * 256 * TOKENS floats.
template <int TOKENS>
__device__ __forceinline__ void absorb_query(const bf16* q, const bf16* kv_b, bf16* out, int tokens, int heads, int nope, int rope, int v_dim, int kv_lora) {
    extern __shared__ float sums[];
    admit_next();
    const int head = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, col = (blockIdx.y * WARP + lane) * 8, first = blockIdx.z * TOKENS;
    const bf16* w = kv_b + (size_t)head * (nope + v_dim) * kv_lora + col;
    // A warp's first rows of weights, asked for ahead of the kernel's turn.
    constexpr int AHEAD = TOKENS == 1 ? 16 : 4;
    float acc[TOKENS][8] = {};
    uint4 ahead[AHEAD];
    if (col < kv_lora)
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
            if (warp + u * WARPS < nope) ahead[u] = *reinterpret_cast<const uint4*>(w + (size_t)(warp + u * WARPS) * kv_lora);
    await_previous();
    const auto add = [&](int i, const float (&row)[8]) {
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            const float x = first + t < tokens ? f32(q[((size_t)(first + t) * heads + head) * (nope + rope) + i]) : 0.f;
#pragma unroll
            for (int c = 0; c < 8; ++c) acc[t][c] += x * row[c];
        }
    };
    if (col < kv_lora) {
        float row[8];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (warp + u * WARPS >= nope) break;
            unpack8(ahead[u], row);
            add(warp + u * WARPS, row);
        }
#pragma unroll 4
        for (int i = warp + AHEAD * WARPS; i < nope; i += WARPS) {
            load8(w + (size_t)i * kv_lora, row);
            add(i, row);
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
    absorb_query<1>(q, kv_b, out, tokens, heads, nope, rope, v_dim, kv_lora);
}
extern "C" __global__ void mla_absorb_query_4(const bf16* q, const bf16* kv_b, bf16* out, int tokens, int heads, int nope, int rope, int v_dim, int kv_lora) {
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

// GQA: per-head norms, rotation, cache append. in[T, q | k | v], cache rows [k | v]. Interleaved pairs come out as halves.
// Grid: (T, heads + 2 * kv_heads), a thread an element. Shared: head_dim floats.
extern "C" __global__ void qkv_prepare(const bf16* in, const int* positions, bf16* cache, const bf16* q_weight, const bf16* k_weight, bf16* q_out, const double* frequencies,
                                       const SequenceRows* sequences, int sequence_count, int heads, int kv_heads, int head_dim, int rope, int interleaved, float factor,
                                       float eps) {
    admit_next();
    extern __shared__ float row[];
    const int t = blockIdx.x, unit = blockIdx.y, i = threadIdx.x;
    const bool value = unit >= heads + kv_heads, held = i < head_dim;
    // Weights are constant, positions and sequences come from the host.
    const bf16* weight = unit < heads ? q_weight : k_weight;
    const float w = weight && !value && held ? f32(weight[i]) : 1.f;
    Angle angle;
    if (!value && i < rope / 2) angle = angle_of(positions[t], frequencies[i]);
    const SequenceRows s = sequences[sequence_of(sequences, sequence_count, t)];
    bf16* cache_row = cache + (size_t)(s.cache_start + s.past + t - s.row_start) * 2 * kv_heads * head_dim;
    bf16* to = unit < heads ? q_out + ((size_t)t * heads + unit) * head_dim : cache_row + (size_t)(unit - heads) * head_dim;
    await_previous();
    const bf16* from = in + ((size_t)t * (heads + 2 * kv_heads) + unit) * head_dim;
    if (value) {
        if (held) to[i] = from[i];
        return;
    }
    float x = held ? f32(from[i]) : 0.f;
    if (weight) x = f32(to_bf16(f32(to_bf16(x * rsqrtf(block_sum(x * x) / head_dim + eps))) * w));
    if (held) row[i] = x;
    __syncthreads();
    if (i < rope / 2) {
        float first, second;
        rotate_pair(row[interleaved ? 2 * i : i], row[interleaved ? 2 * i + 1 : i + rope / 2], angle, factor, &first, &second);
        to[i] = to_bf16(first);
        to[rope / 2 + i] = to_bf16(second);
    }
    if (i >= rope && held) to[i] = to_bf16(x);
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
