/* The CPU set's hot loops in plain C, for float32 and bfloat16; native.py compiles it on the machine it runs on.

   Everything accumulates in float32 and in an order that depends on the row alone, never on its neighbours or on the
   number of threads. NaN in an input reaches exactly the rows that read it: no -ffast-math. Layouts are those of
   ../../interface.py; pages are read where they lie. */

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float from_bf16(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline bf16 to_bf16(float value) { /* nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

static inline float from_float(float x) { return x; }
static inline float to_float(float x) { return x; }

/* exp for x <= 88, relative error below 2e-7 (Cephes' polynomial); 0 below -87; NaN stays NaN. Vectorises. */
static inline float exp_of(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* rounds to an integer in the low mantissa bits */
    float n = shifted - 12582912.0f;
    float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4b400000 + 127) << 23; /* 2 to the n */
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : y * power;
}

enum { TILE = 32, MAX_ROWS = 64, MAX_DIM = 256, FEW_ROWS = 12, LANES = 16 };

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* out[dim] = out * shrink + the sum over t < count of weights[t] * values[t][dim]. Where dim is a known multiple of the
   lanes the sums stay in registers. */
static inline __attribute__((always_inline)) void add_weighted(
    float *restrict out, float shrink, const float *restrict weights, const float *restrict values, int count, int dim) {
    if (dim % LANES || dim > 128) {
        for (int d = 0; d < dim; d++) out[d] *= shrink;
        for (int t = 0; t < count; t++)
            for (int d = 0; d < dim; d++) out[d] += weights[t] * values[t * dim + d];
        return;
    }
    lanes sums[128 / LANES];
#pragma GCC unroll 8
    for (int c = 0; c < dim / LANES; c++) sums[c] = *(const lanes *)(out + c * LANES) * shrink;
    for (int t = 0; t < count; t++) {
#pragma GCC unroll 8
        for (int c = 0; c < dim / LANES; c++) sums[c] += weights[t] * *(const lanes *)(values + t * dim + c * LANES);
    }
#pragma GCC unroll 8
    for (int c = 0; c < dim / LANES; c++) *(lanes *)(out + c * LANES) = sums[c];
}

#define T float
#define LOAD from_float
#define STORE to_float
#define NAME(name) name##_float32
#include "kernels.inc"
#undef T
#undef LOAD
#undef STORE
#undef NAME

#define T bf16
#define LOAD from_bf16
#define STORE to_bf16
#define NAME(name) name##_bfloat16
#include "kernels.inc"

#include "quantized.inc"
