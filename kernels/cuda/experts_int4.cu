// Routed experts whose weights are stored in int4.
#include "experts_staged.cuh"

// Blocks that share a multiprocessor where one token tile is enough: as many as registers allow without spills. With four of them one token's
// down of Kimi-K2.5, 448 blocks, is one wave on 132 multiprocessors.
#if __CUDA_ARCH__ >= 1200
#define INT4_BLOCKS 2
#define INT4_SINGLE_BLOCKS 2
#else
#define INT4_BLOCKS 3
#define INT4_SINGLE_BLOCKS 4
#endif

GATE_UP(int4, 1, INT4_BLOCKS, INT4_PARAMS, INT4_EXPERTS)
GATE_UP(int4, 2, 1, INT4_PARAMS, INT4_EXPERTS)
GATE_UP(int4, 4, 1, INT4_PARAMS, INT4_EXPERTS)
DOWN(int4, 1, INT4_BLOCKS, INT4_PARAMS, INT4_EXPERTS)
DOWN(int4, 2, 1, INT4_PARAMS, INT4_EXPERTS)
DOWN(int4, 4, 1, INT4_PARAMS, INT4_EXPERTS)
SINGLE(int4, single, 1, , INT4_SINGLE_BLOCKS, INT4_PARAMS, INT4_EXPERTS)

// A tile of tokens has few sums here, so that three blocks fit by registers; SM120 has shared memory for one.
GATE_UP_STAGED(int4, 1, 3, INT4_PARAMS, INT4_STAGED)
GATE_UP_STAGED(int4, 2, 3, INT4_PARAMS, INT4_STAGED)
GATE_UP_STAGED(int4, 4, 2, INT4_PARAMS, INT4_STAGED)
DOWN_STAGED(int4, 1, 3, INT4_PARAMS, INT4_STAGED)
DOWN_STAGED(int4, 2, 3, INT4_PARAMS, INT4_STAGED)
DOWN_STAGED(int4, 4, 2, INT4_PARAMS, INT4_STAGED)
