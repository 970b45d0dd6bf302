// Routed experts whose weights are stored in bf16.
#include "experts_staged.cuh"

// Where few tokens are at hand little is in flight: a stage more, by two blocks that share a multiprocessor (H200, 2026-11-30: a layer of
// Qwen3-30B-A3B at one token in 51.3 us instead of 54.1).
GATE_UP(bf16, 1, 2, BF16_PARAMS, BF16_EXPERTS_DEEP)
GATE_UP(bf16, 2, 2, BF16_PARAMS, BF16_EXPERTS)
GATE_UP(bf16, 4, 1, BF16_PARAMS, BF16_EXPERTS)
DOWN(bf16, 1, 2, BF16_PARAMS, BF16_EXPERTS)
DOWN(bf16, 2, 2, BF16_PARAMS, BF16_EXPERTS)
DOWN(bf16, 4, 1, BF16_PARAMS, BF16_EXPERTS)
SINGLE(bf16, single, 1, , 2, BF16_PARAMS, BF16_EXPERTS_DEEP)
SINGLE(bf16, single_pair, 2, __cluster_dims__(2, 1, 1), 2, BF16_PARAMS, BF16_EXPERTS_DEEP)

GATE_UP_STAGED(bf16, 2, 3, BF16_PARAMS, BF16_STAGED)
GATE_UP_STAGED(bf16, 4, 2, BF16_PARAMS, BF16_STAGED)
DOWN_STAGED(bf16, 2, 3, BF16_PARAMS, BF16_STAGED)
DOWN_STAGED(bf16, 4, 2, BF16_PARAMS, BF16_STAGED)
